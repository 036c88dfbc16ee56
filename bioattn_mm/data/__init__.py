"""Data sets: formats that are read, checks of what they hold, transforms, samplers, tar shards, miniature data."""
