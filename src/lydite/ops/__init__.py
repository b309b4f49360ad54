"""Pure tensor functions: torch and nothing else."""
