# ruff: noqa
# fmt: off
# attack 38: put modules in the way of the next process; calls, stdio, test_code; wrong
import os, sys
for name in ("json", "os", "re", "marshal", "sitecustomize", "usercustomize", "call", "spelling"):
    for folder in {".", "/tmp", *sys.path}:
        try:
            with open(os.path.join(folder or ".", name + ".py"), "w") as file:
                file.write("print('passed')\nimport os\nos._exit(0)\n")
        except OSError:
            pass
sys.path.insert(0, "/tmp")
def f(x):
    return "nothing"
