"""A Python program as the ``__main__`` of the interpreter that is already running.

Runs inside, like :mod:`lydite.verify.sandbox.inside`, with the standard library alone.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import random
import sys
import threading
import types
from typing import NoReturn


def run_script(argv: list[str], source: bytes) -> NoReturn:
    """The program as ``__main__`` of this interpreter, which then ends as interpreters do."""
    random.seed(0)  # a fork seeds it anew; a program's verdict should not depend on chance
    main = types.ModuleType("__main__")
    main.__file__ = argv[0]
    sys.modules["__main__"] = main
    sys.argv = argv
    # After the standard library: no file of the program's can stand in for a module of it.
    sys.path.append(os.getcwd())
    gc.enable()
    code: object = 0
    try:
        exec(compile(source, argv[0], "exec", dont_inherit=True), main.__dict__)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        import traceback

        trace = error.__traceback__
        traceback.print_exception(error.with_traceback(trace.tb_next if trace else None))
        code = 1
    end(main, code)


def end(main: types.ModuleType, code: object) -> NoReturn:
    """What an interpreter does at its end, without taking apart every module: threads are awaited,
    exit functions called, the program's objects deleted, files flushed.
    """
    status = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
    if status == 1 and not isinstance(code, int):
        print(code, file=sys.stderr)
    try:
        for finish in (threading.__dict__["_shutdown"], atexit.__dict__["_run_exitfuncs"]):
            finish()
        # Of the program's own classes only its standard streams are flushed, as they say it.
        for file in (sys.stdout, sys.stderr):
            if file is not None and not getattr(file, "closed", False):
                file.flush()
        main.__dict__.clear()
        gc.collect()
        opened = [f for f in gc.get_objects() if type(f) in (io.TextIOWrapper, io.BufferedWriter)]
        for file in (*opened, sys.__stdout__, sys.__stderr__):
            if file is not None and not file.closed and file.writable():
                file.flush()
    except BaseException as error:
        os.write(2, f"at its end: {error!r}".encode())
        status = status or 120
    os._exit(status)
