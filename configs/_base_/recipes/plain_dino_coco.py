# DINO of four scales on the last feature map of a plain backbone of 12 blocks; a config adds the backbone and the
# neck's `in_channels`.
_base_ = ['./dino_coco.py', '../backbones/plain.py']
model = dict(backbone=dict(out_indices=(11,)), neck=dict(_base_.pop('neck'), _delete_=True, scales=(2, 1, 0.5, 0.25)))
# The whole backbone learns at a tenth of the rate, as in DINO with any backbone: no layer decay.
optim_wrapper = dict(optimizer=dict(weight_decay=0.05), paramwise_cfg=_base_.pop('paramwise_cfg'))
