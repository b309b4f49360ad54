"""Programs as answers: read from a completion, run in the sandbox, their replies compared here."""
