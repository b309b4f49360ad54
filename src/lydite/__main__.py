"""``python -m lydite`` is ``lydite``."""

from lydite.cli.main import app

app(prog_name="lydite")
