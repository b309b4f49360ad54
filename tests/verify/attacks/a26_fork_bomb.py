# ruff: noqa
# fmt: off
# attack 26: start processes without end; calls, stdio, test_code; wrong, timeout
import os, threading
def f(x):
    while True:
        try:
            os.fork()
        except OSError:
            break
    for _ in range(10000):
        try:
            threading.Thread(target=lambda: __import__("time").sleep(60)).start()
        except RuntimeError:
            break
    return "nothing"
