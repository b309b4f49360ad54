"""The loops: SFT, RL, the learner, checkpoints."""
