# RVT-Ti with Performer attention, fine-tuned on three domains of PACS (VARS, table 3).
# Weights: those of ImageNet-1k, which nobody publishes.
_base_ = ['../../_base_/recipes/finetune_pacs.py', '../../_base_/backbones/vars_weights.py']
model = dict(
    backbone=dict(
        type='bioattn_mm.VARS',
        attention='performer',
        out_indices=(11,),
        out_type='avg_featmap',
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/vars_rvt_tiny_performer.pth'),
    ),
    neck=None,
    head=dict(in_channels=384),
)
