# VARS-SD in DeiT-Ti with 3 heads, one random feature for each channel and nothing learned in the recurrence, which
# has the parameters of the paper, on ImageNet-1k (VARS, table 2).
# Weights: random.
_base_ = '../deit-tiny-vars-sd_8xb128_in1k.py'
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, block='deit', embed_dims=[192], depths=[12], num_heads=[3], feature_ratio=1),
        attention=dict(_delete_=True, type='bioattn_mm.IstaReconstructionAttention'),
    )
)
