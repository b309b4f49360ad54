# ruff: noqa
# fmt: off
# attack 4: ignore every signal that can be ignored and go on; calls, stdio, test_code; timeout
import signal
for s in range(1, 65):
    try:
        signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def f(x):
    while True:
        pass
