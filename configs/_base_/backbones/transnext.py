# What every detector and segmentor with TransNeXt shares: the parameters without weight decay,
# `_base_.pop('custom_keys')`.
custom_keys = {name: dict(decay_mult=0.0) for name in ('attn.scale', 'window_bias', 'position_bias', 'norm')}
