# What every classifier with TransNeXt shares.
# A config takes both out of its bases: `_base_.pop('backbone')`, `_base_.pop('custom_keys')`.
backbone = dict(type='bioattn_mm.TransNeXt', out_indices=(3,))
# All other parameters without weight decay are vectors.
custom_keys = {name: dict(decay_mult=0.0) for name in ('attn.scale', 'window_bias', 'position_bias')}
