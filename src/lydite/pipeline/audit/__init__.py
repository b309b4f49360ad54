"""The audit of a reward as a person asks for it: found by name, measured, graded, written down."""
