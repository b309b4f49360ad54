# ruff: noqa
# fmt: off
# attack 24: never end and use no processor time; calls, stdio, test_code; timeout
import time
def f(x):
    while True:
        time.sleep(1000)
