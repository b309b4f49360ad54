# ruff: noqa
# fmt: off
# attack 32: values that harm whoever evaluates or unpickles them; calls, stdio, test_code; wrong
class Bomb:
    def __reduce__(self):
        return (__import__("os").system, ("touch /tmp/lydite-canary",))
def f(x):
    import pickle
    print("__import__('os').system('touch /tmp/lydite-canary')")
    return [
        "__import__('os').system('touch /tmp/lydite-canary')",
        "!!python/object/apply:os.system ['touch /tmp/lydite-canary']",
        pickle.dumps(Bomb()),
    ]
