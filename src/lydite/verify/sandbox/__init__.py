"""Runs programs that nobody has read, without harm to the machine."""

from lydite.verify.sandbox.box import Session
from lydite.verify.sandbox.program import Ended, Program, SandboxError, SandboxLimits
from lydite.verify.sandbox.warm import Runner, Sandbox

__all__ = ["Ended", "Program", "Runner", "Sandbox", "SandboxError", "SandboxLimits", "Session"]
