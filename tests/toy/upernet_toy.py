# UperNet with the toy backbone on ADE20K.
_base_ = '../../configs/convit/upernet_tiny_ade20k.py'
custom_imports = dict(imports=['toy_vit'])
model = dict(
    backbone=dict(_delete_=True, type='bioattn_mm.ToyViT', drop_path_rate=0.1),
    neck=dict(in_channels=[24] * 4, out_channels=16),
    decode_head=dict(in_channels=[16] * 4, channels=16),
    auxiliary_head=dict(in_channels=16, channels=16),
)
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.5))
