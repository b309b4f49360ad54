"""Lydite trains reasoning language models with GRPO and rewards that can be checked."""

__version__ = "0.1.0"
