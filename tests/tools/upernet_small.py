# UperNet small enough to train in several processes in a test.
_base_ = '../../configs/transnext/upernet_micro_ade20k.py'
channels = (24, 48, 48, 48)
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=channels, num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1))),
    decode_head=dict(in_channels=channels, channels=16),
    auxiliary_head=dict(in_channels=channels[2], channels=16),
)
