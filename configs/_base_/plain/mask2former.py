# Mask2Former on four depths of a plain backbone; a config adds the backbone and the `in_channels` of the neck.
_base_ = [
    '../models/mask2former.py',
    '../datasets/ade20k_mask2former.py',
    '../schedules/plain_backbone.py',
    '../schedules/mask2former_160k.py',
    '../runtimes/mmseg.py',
]
pyramid_channels = 256
model = dict(
    neck=dict(
        type='bioattn_mm.SimpleFeaturePyramid',
        out_channels=pyramid_channels,
        scales=(4, 2, 1, 0.5),
        head_strides=_base_.model.decode_head.strides,
    ),
    decode_head=dict(in_channels=[pyramid_channels] * 4),
)
# The whole backbone learns at a tenth of the rate, as in Mask2Former with any backbone: no layer decay.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.plain_no_decay, flat_decay_mult=0.0))
