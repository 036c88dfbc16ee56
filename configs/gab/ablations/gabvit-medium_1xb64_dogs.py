# GABViT-Medium, fine-tuned on Stanford Dogs (GAB, table 3).
# Weights: timm's classifier of ImageNet-1k without Gaussians, fetched when training starts.
_base_ = '../../_base_/recipes/finetune_dogs.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.GABViT',
        arch='medium',
        out_indices=(11,),
        out_type='avg_featmap',
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-tpu-weights/vit_relpos_medium_patch16_224-sw-11c174af.pth',
        ),
    ),
    neck=None,
    head=dict(in_channels=512),
)
