"""Grids of tokens."""

# (height, width) in tokens.
Grid = tuple[int, int]
