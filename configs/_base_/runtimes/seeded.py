# What training draws at random depends on the seed, the rank, the iteration and the sample alone, so that a run that
# was interrupted and resumed draws what it would have drawn. Any config can inherit this file; one with hooks of its
# own keeps this one with `custom_hooks = [*_base_.custom_hooks, ...]`.
custom_hooks = [dict(type='bioattn_mm.SeedingHook')]
