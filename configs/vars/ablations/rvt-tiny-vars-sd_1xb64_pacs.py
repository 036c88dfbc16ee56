# VARS-SD in RVT-Ti, fine-tuned on three domains of PACS (VARS, table 3).
# Weights: the authors' classifier of ImageNet-1k, put there by hand.
_base_ = '../../_base_/recipes/finetune_pacs.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.VARS',
        attention='vars_sd',
        num_steps=5,
        out_indices=(11,),
        out_type='avg_featmap',
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/vars_rvt_tiny_vars_sd.pth'),
    ),
    neck=None,
    head=dict(in_channels=384),
)
