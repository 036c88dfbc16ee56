# PerViT-Tiny with the authors' ImageNet-1k release.
# A config takes it out of its bases into its model: `_base_.pop('backbone')`.
backbone = dict(
    type='bioattn_mm.PerViT', arch='tiny', init_cfg=dict(type='Pretrained', checkpoint='checkpoints/pervit_tiny.pth')
)
