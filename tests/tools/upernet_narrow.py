# UperNet with few blocks, and a narrow head, which otherwise takes most of the time.
_base_ = '../../configs/transnext/upernet_micro_ade20k.py'
arch = dict(_delete_=True, embed_dims=(48, 96, 192, 384), num_heads=(2, 4, 8, 16), depths=(1, 1, 1, 1))
model = dict(backbone=dict(arch=arch), decode_head=dict(channels=96), auxiliary_head=dict(channels=48))
