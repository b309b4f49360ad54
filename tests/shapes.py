"""What checks the shapes and types of signatures in `lydite.ops` and `lydite.objective` under test.

Named in pyproject.toml for jaxtyping's import hook; without the hook, annotations cost nothing.
"""

from __future__ import annotations

from beartype import BeartypeConf, beartype

# As type checkers read it: a whole number will do for a float.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
