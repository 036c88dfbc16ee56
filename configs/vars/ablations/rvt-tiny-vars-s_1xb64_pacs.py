# VARS-S in RVT-Ti with the 3 kernels of the paper, fine-tuned on three domains of PACS (VARS, table 3).
# Weights: those of ImageNet-1k, which nobody publishes.
_base_ = '../../_base_/recipes/finetune_pacs.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.VARS',
        attention='vars_s',
        num_kernels=3,
        sparsity=0.3,
        out_indices=(11,),
        out_type='avg_featmap',
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/vars_rvt_tiny_vars_s.pth'),
    ),
    neck=None,
    head=dict(in_channels=384),
)
