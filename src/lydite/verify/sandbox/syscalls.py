"""The system calls that a sandboxed program may make, and their numbers.

A list of what is allowed, not of what is known to be dangerous: a call that is new to the kernel is
refused until somebody has thought about it. Numbers are those of the kernel's own headers.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _numbers(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (pair.split(":") for pair in text.split())}


# Computing, reading, waiting, threads, and what an interpreter's start needs.
ALWAYS = _names(
    """
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close
    close_range dup dup2 dup3 pipe pipe2 poll ppoll select pselect6 epoll_create
    epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2
    timerfd_create timerfd_settime timerfd_gettime open openat access faccessat faccessat2
    stat fstat lstat newfstatat statx statfs fstatfs readlink readlinkat getdents getdents64
    getcwd chdir fchdir fsync fdatasync fadvise64 sendfile copy_file_range umask mmap
    munmap mprotect mremap madvise brk msync mincore membarrier rt_sigaction rt_sigprocmask
    rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack restart_syscall
    nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getitimer
    setitimer alarm pause getpid gettid getppid getuid geteuid getgid getegid getresuid
    getresgid getgroups getpgrp getpgid getsid setsid exit exit_group wait4 waitid execve
    futex futex_waitv futex_wake futex_wait futex_requeue set_robust_list get_robust_list
    set_tid_address rseq arch_prctl sched_yield sched_getaffinity sched_getparam
    sched_getscheduler sched_get_priority_max sched_get_priority_min getcpu getpriority
    uname sysinfo getrusage getrlimit getrandom shutdown getsockopt setsockopt getsockname
    getpeername recvfrom
    """
)

# Changing files: only where the program's file system is its own. Not their times: the devices are
# the machine's, and a time set on one could be read by the next program.
WRITING = _names(
    """
    creat mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink
    symlinkat chmod fchmod fchmodat fchmodat2 truncate ftruncate fallocate
    """
)

# Signals: only where no process but its own can be hit.
SIGNALS = _names(
    """
    kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo
    """
)

# Starting processes: only where they end with the sandbox.
FORKING = _names(
    """
    fork vfork
    """
)

# By machine, as ``platform.machine()`` names it.
NUMBERS = {
    "x86_64": _numbers(
        """
        read:0 write:1 open:2 close:3 stat:4 fstat:5 lstat:6 poll:7 lseek:8 mmap:9
        mprotect:10 munmap:11 brk:12 rt_sigaction:13 rt_sigprocmask:14 rt_sigreturn:15
        ioctl:16 pread64:17 pwrite64:18 readv:19 writev:20 access:21 pipe:22 select:23
        sched_yield:24 mremap:25 msync:26 mincore:27 madvise:28 dup:32 dup2:33 pause:34
        nanosleep:35 getitimer:36 alarm:37 setitimer:38 getpid:39 sendfile:40 sendto:44
        recvfrom:45 shutdown:48 getsockname:51 getpeername:52 socketpair:53 setsockopt:54
        getsockopt:55 clone:56 fork:57 vfork:58 execve:59 exit:60 wait4:61 kill:62 uname:63
        fcntl:72 flock:73 fsync:74 fdatasync:75 truncate:76 ftruncate:77 getdents:78
        getcwd:79 chdir:80 fchdir:81 rename:82 mkdir:83 rmdir:84 creat:85 link:86 unlink:87
        symlink:88 readlink:89 chmod:90 fchmod:91 umask:95 gettimeofday:96 getrlimit:97
        getrusage:98 sysinfo:99 times:100 getuid:102 getgid:104 geteuid:107 getegid:108
        getppid:110 getpgrp:111 setsid:112 getgroups:115 getresuid:118 getresgid:120
        getpgid:121 getsid:124 rt_sigpending:127 rt_sigtimedwait:128 rt_sigqueueinfo:129
        rt_sigsuspend:130 sigaltstack:131 utime:132 statfs:137 fstatfs:138 getpriority:140
        sched_getparam:143 sched_getscheduler:145 sched_get_priority_max:146
        sched_get_priority_min:147 prctl:157 arch_prctl:158 gettid:186 tkill:200 time:201
        futex:202 sched_setaffinity:203 sched_getaffinity:204 epoll_create:213
        getdents64:217 set_tid_address:218 restart_syscall:219 fadvise64:221
        clock_gettime:228 clock_getres:229 clock_nanosleep:230 exit_group:231 epoll_wait:232
        epoll_ctl:233 tgkill:234 utimes:235 waitid:247 openat:257 mkdirat:258 futimesat:261
        newfstatat:262 unlinkat:263 renameat:264 linkat:265 symlinkat:266 readlinkat:267
        fchmodat:268 faccessat:269 pselect6:270 ppoll:271 set_robust_list:273
        get_robust_list:274 utimensat:280 epoll_pwait:281 timerfd_create:283 eventfd:284
        fallocate:285 timerfd_settime:286 timerfd_gettime:287 eventfd2:290 epoll_create1:291
        dup3:292 pipe2:293 preadv:295 pwritev:296 rt_tgsigqueueinfo:297 prlimit64:302
        getcpu:309 renameat2:316 getrandom:318 membarrier:324 copy_file_range:326
        preadv2:327 pwritev2:328 statx:332 rseq:334 clone3:435 close_range:436
        faccessat2:439 epoll_pwait2:441 futex_waitv:449 fchmodat2:452 futex_wake:454
        futex_wait:455 futex_requeue:456
        """
    ),
    "aarch64": _numbers(
        """
        getcwd:17 eventfd2:19 epoll_create1:20 epoll_ctl:21 epoll_pwait:22 dup:23 dup3:24
        fcntl:25 ioctl:29 flock:32 mkdirat:34 unlinkat:35 symlinkat:36 linkat:37 renameat:38
        statfs:43 fstatfs:44 truncate:45 ftruncate:46 fallocate:47 faccessat:48 chdir:49
        fchdir:50 fchmod:52 fchmodat:53 openat:56 close:57 pipe2:59 getdents64:61 lseek:62
        read:63 write:64 readv:65 writev:66 pread64:67 pwrite64:68 preadv:69 pwritev:70
        sendfile:71 pselect6:72 ppoll:73 readlinkat:78 newfstatat:79 fstat:80 fsync:82
        fdatasync:83 timerfd_create:85 timerfd_settime:86 timerfd_gettime:87 utimensat:88
        exit:93 exit_group:94 waitid:95 set_tid_address:96 futex:98 set_robust_list:99
        get_robust_list:100 nanosleep:101 getitimer:102 setitimer:103 clock_gettime:113
        clock_getres:114 clock_nanosleep:115 sched_getscheduler:120 sched_getparam:121
        sched_setaffinity:122 sched_getaffinity:123 sched_yield:124
        sched_get_priority_max:125 sched_get_priority_min:126 restart_syscall:128 kill:129
        tkill:130 tgkill:131 sigaltstack:132 rt_sigsuspend:133 rt_sigaction:134
        rt_sigprocmask:135 rt_sigpending:136 rt_sigtimedwait:137 rt_sigqueueinfo:138
        rt_sigreturn:139 getpriority:141 getresuid:148 getresgid:150 times:153 getpgid:155
        getsid:156 setsid:157 getgroups:158 uname:160 getrlimit:163 getrusage:165 umask:166
        prctl:167 getcpu:168 gettimeofday:169 getpid:172 getppid:173 getuid:174 geteuid:175
        getgid:176 getegid:177 gettid:178 sysinfo:179 socketpair:199 getsockname:204
        getpeername:205 sendto:206 recvfrom:207 setsockopt:208 getsockopt:209 shutdown:210
        brk:214 munmap:215 mremap:216 clone:220 execve:221 mmap:222 fadvise64:223
        mprotect:226 msync:227 mincore:232 madvise:233 rt_tgsigqueueinfo:240 wait4:260
        prlimit64:261 renameat2:276 getrandom:278 membarrier:283 copy_file_range:285
        preadv2:286 pwritev2:287 statx:291 rseq:293 clone3:435 close_range:436
        faccessat2:439 epoll_pwait2:441 futex_waitv:449 fchmodat2:452 futex_wake:454
        futex_wait:455 futex_requeue:456
        """
    ),
}
# How the kernel names a machine to a filter (AUDIT_ARCH_*).
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
