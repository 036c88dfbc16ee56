# UperNet with few and narrow blocks, and a narrow head, which otherwise takes most of the time.
_base_ = '../../configs/transnext/upernet_micro_ade20k.py'
channels = (24, 48, 96, 192)
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=channels, num_heads=(1, 2, 4, 8), depths=(1, 1, 1, 1))),
    decode_head=dict(in_channels=channels, channels=96),
    auxiliary_head=dict(in_channels=channels[2], channels=48),
)
