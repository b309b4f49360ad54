"""Samples completions: engines that share the learner's weights, and the sampler that decides what
to draw next.
"""
