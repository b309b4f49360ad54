# ruff: noqa
# fmt: off
# attack 4: turn every ending into a success; calls, stdio, test_code; wrong
import atexit, os, signal, sys
atexit.register(os._exit, 0)
sys.excepthook = lambda *a: os._exit(0)
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGXCPU, signal.SIGHUP):
    signal.signal(s, lambda *a: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, 0.05)
def f(x):
    import time
    time.sleep(0.5)
    return "nothing"
