# PVTv2 in the shape of TransNeXt-Micro with a GLU as channel mixer on ImageNet-1k (TransNeXt, table 2, step 4).
# Weights: random.
_base_ = './pvt-v2-more-heads_8xb128_in1k.py'
model = dict(backbone=dict(channel_mixer=dict(type='bioattn_mm.GLU')))
