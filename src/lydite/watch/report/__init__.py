"""A run as a page and as a picture: its scores, what the diagnosis says, the course of its
figures.
"""
