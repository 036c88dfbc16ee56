# TransNeXt-Tiny, and the parameters without weight decay of every detector and segmentor with TransNeXt.
# A config takes both out of its bases: `_base_.pop('backbone')`, `_base_.pop('custom_keys')`.
_base_ = './transnext_tiny.py'
custom_keys = {name: dict(decay_mult=0.0) for name in ('attn.scale', 'window_bias', 'position_bias', 'norm')}
