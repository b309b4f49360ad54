# ruff: noqa
# fmt: off
# attack 27: leave a process behind; calls, stdio, test_code; wrong, timeout
import os, time
def f(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for _ in range(600):
                time.sleep(1)
                try:
                    open("/tmp/lydite-canary", "w").close()
                except OSError:
                    pass
        os._exit(0)
    return "nothing"
