"""Says in plain words what goes wrong in a run, why, and what to change.

``curves`` is what is read of a run, ours or another trainer's; ``rule`` what a rule and a finding
are; the rules lie by subject in ``groups``, ``learning``, ``text``, ``rewards`` and ``progress``.
"""
