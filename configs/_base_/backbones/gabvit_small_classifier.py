# GABViT-Small of a classifier, which pools in the backbone, with timm's ImageNet-1k release of the host without
# Gaussians.
# A config takes it out of its bases into its model: `_base_.pop('backbone')`.
backbone = dict(
    type='bioattn_mm.GABViT',
    arch='small',
    out_indices=(11,),
    out_type='avg_featmap',
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-tpu-weights/vit_relpos_small_patch16_224-sw-ec2778b4.pth',
    ),
)
