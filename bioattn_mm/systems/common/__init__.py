"""What several systems share: base classes of backbones, blocks, grids of tokens, attention maps, feature pyramid."""
