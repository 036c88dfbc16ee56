# ConViT-Tiny with the authors' ImageNet-1k release.
# A config takes it out of its bases into its model: `_base_.pop('backbone')`.
backbone = dict(
    type='bioattn_mm.ConViT',
    arch='tiny',
    drop_path_rate=0.1,
    init_cfg=dict(type='Pretrained', checkpoint='https://dl.fbaipublicfiles.com/convit/convit_tiny.pth'),
)
