# TransNeXt-Micro with an MLP and squeeze and excitation of its output as channel mixer on ImageNet-1k (TransNeXt,
# fig. 4 b; ours, in no table of the paper).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(backbone=dict(channel_mixer=dict(type='bioattn_mm.SEMLP')))
