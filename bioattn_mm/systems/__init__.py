"""The five systems, a folder each: backbone, attention with its equations, position bias, what its ablations need."""
