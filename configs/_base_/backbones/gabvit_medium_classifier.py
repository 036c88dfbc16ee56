# GABViT-Medium as a classifier with timm's ImageNet-1k release of the host without Gaussians.
_base_ = './gabvit_small_classifier.py'
backbone = dict(
    arch='medium',
    init_cfg=dict(
        checkpoint='https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-tpu-weights/vit_relpos_medium_patch16_224-sw-11c174af.pth'
    ),
)
