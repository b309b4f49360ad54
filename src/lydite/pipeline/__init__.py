"""Stages from artifact to artifact, their lineage, and the recipe that runs them."""
