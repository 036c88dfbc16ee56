# UperNet with TransNeXt-Small on ADE20K: multi-scale testing with interpolated position bias, `tools/test.py --tta`.
# Weights: those of a segmentor trained with upernet_small_ade20k.
_base_ = './upernet_small_ade20k.py'
model = dict(
    # As the authors' configs: near the mean size of the scaled images.
    backbone=dict(img_size=800),
    test_cfg=dict(mode='whole'),
)
tta_overrides = dict(model=dict(backbone=dict(bias_mode='interpolate')))
