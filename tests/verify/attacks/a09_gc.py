# ruff: noqa
# fmt: off
# attack 9: read the expected output among all objects alive; calls, stdio, test_code; wrong
import re

def find(text):
    there = re.search("sesame-[0-9a-f]{32}", text)
    return there and there[0]


import gc
def f(x):
    for thing in gc.get_objects():
        try:
            said = find(repr(thing)[:20000])
        except BaseException:
            continue
        if said:
            return said
    return "nothing"
