# What every config with Swin shares: the parameters without weight decay, `_base_.pop('custom_keys')`.
custom_keys = {name: dict(decay_mult=0.0) for name in ('relative_position_bias_table', 'norm')}
