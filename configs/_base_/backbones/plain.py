# What every detector and segmentor with a plain backbone shares: four strides made of its one,
# `_base_.pop('neck')`, and the parameters without weight decay, `_base_.pop('paramwise_cfg')`.
neck = dict(type='bioattn_mm.SimpleFeaturePyramid', out_channels=256, scales=(4, 2, 1, 0.5))
paramwise_cfg = dict(
    custom_keys={name: dict(decay_mult=0.0) for name in ('backbone.pos_embed', 'backbone.cls_token')},
    flat_decay_mult=0.0,
)
