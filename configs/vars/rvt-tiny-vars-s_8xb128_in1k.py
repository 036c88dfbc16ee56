# VARS-S in RVT-Ti on ImageNet-1k, 300 epochs of 224 x 224 (VARS, table 1).
# Weights: random.
_base_ = '../_base_/recipes/deit_in1k.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.VARS',
        arch='rvt-tiny',
        attention='vars_s',
        out_indices=(11,),
        out_type='avg_featmap',
        # In the release block i of 12 has a rate of 0.1 * i / 12, i from 0.
        drop_path_rate=0.1 * 11 / 12,
    ),
    neck=None,
    head=dict(in_channels=384),
)
