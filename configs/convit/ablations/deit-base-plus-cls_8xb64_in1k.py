# DeiT-Base+ on ImageNet-1k: the baseline (ConViT, table 1, B+).
# Weights: random.
_base_ = '../convit-base-plus_8xb64_in1k.py'
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=1024, num_layers=12, num_heads=16), local_up_to_layer=0),
    head=dict(in_channels=1024),
)
