# ruff: noqa
# fmt: off
# attack 29: ask a server of the machine for the answer; calls, stdio, test_code; wrong
import socket
def f(x):
    for host in ("127.0.0.1", "localhost", "::1", "10.0.0.1"):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                with socket.socket(family, kind) as s:
                    s.settimeout(0.2)
                    s.connect((host, x))
                    s.send(b"answer?")
                    return s.recv(100).decode()
            except OSError:
                pass
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect("\0lydite-test-" + str(x))
            return s.recv(100).decode()
    except OSError:
        return "nothing"
