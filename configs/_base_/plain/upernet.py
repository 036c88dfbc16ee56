# UperNet on four depths of a plain backbone; a config adds the backbone and the `in_channels` of the neck.
_base_ = [
    '../models/upernet.py',
    '../datasets/ade20k.py',
    '../schedules/plain_backbone.py',
    '../schedules/adamw_160k.py',
    '../runtimes/mmseg.py',
]
pyramid_channels = 256
model = dict(
    neck=dict(type='bioattn_mm.SimpleFeaturePyramid', out_channels=pyramid_channels, scales=(4, 2, 1, 0.5)),
    decode_head=dict(in_channels=[pyramid_channels] * 4),
    auxiliary_head=dict(in_channels=pyramid_channels),
)
optim_wrapper = dict(
    constructor='bioattn_mm.CombinedRulesConstructor',
    paramwise_cfg=dict(custom_keys=_base_.plain_no_decay, flat_decay_mult=0.0),
)
