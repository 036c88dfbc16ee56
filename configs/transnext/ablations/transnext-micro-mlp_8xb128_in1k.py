# TransNeXt-Micro with an MLP as channel mixer on ImageNet-1k (ours, in no table of the paper).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(backbone=dict(channel_mixer=dict(type='bioattn_mm.MLP')))
