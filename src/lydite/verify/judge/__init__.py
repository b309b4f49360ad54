"""A language model on a server as the grader of what rules cannot decide."""
