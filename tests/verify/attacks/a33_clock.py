# ruff: noqa
# fmt: off
# attack 33: stop the clock and take all the time there is; calls, stdio, test_code; timeout
import time
for name in ("time", "monotonic", "perf_counter", "process_time", "time_ns", "monotonic_ns"):
    setattr(time, name, lambda: 0)
time.sleep = lambda seconds: None
def f(x):
    while time.monotonic() < 1:
        pass
