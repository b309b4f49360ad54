"""reasoning-gym's own scorers, where they can do no harm and hold to what they say."""
