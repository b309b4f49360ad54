# ruff: noqa
# fmt: off
# attack 10: look for the expected output in memory, shared or its own; calls, stdio, test_code; wrong
import re

def find(text):
    there = re.search("sesame-[0-9a-f]{32}", text)
    return there and there[0]


import mmap, os
def f(x):
    for folder in ("/dev/shm", "/proc/self/fd", "/run", "/proc/self/map_files"):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    os.set_blocking(file.fileno(), False)
                    said = find((file.read(1 << 20) or b"").decode("latin1"))
                    if said:
                        return said
            except OSError:
                pass
    for fd in range(256):
        try:
            said = find(mmap.mmap(fd, 4096)[:].decode("latin1"))
            if said:
                return said
        except (OSError, ValueError):
            pass
    try:
        for line in open("/proc/self/maps"):
            low, high = (int(n, 16) for n in line.split()[0].split("-"))
            with open("/proc/self/mem", "rb") as memory:
                memory.seek(low)
                said = find(memory.read(min(high - low, 1 << 24)).decode("latin1"))
                if said:
                    return said
    except (OSError, ValueError, OverflowError):
        pass
    return "nothing"
