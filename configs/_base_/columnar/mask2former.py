# Mask2Former on four depths of a columnar backbone; a config adds the backbone and the `in_channels` of the neck.
_base_ = [
    '../models/mask2former.py',
    '../datasets/ade20k_mask2former.py',
    '../schedules/layer_decay.py',
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
optim_wrapper = dict(
    paramwise_cfg=dict(
        # The rates of the layers take the place of the backbone's tenth.
        custom_keys={**_base_.layer_decay, 'backbone': dict(lr_mult=1.0)},
        flat_decay_mult=0.0,
    ),
)
