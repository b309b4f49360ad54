"""What a stage's starting model gets right before anything is trained: what can teach it, how."""
