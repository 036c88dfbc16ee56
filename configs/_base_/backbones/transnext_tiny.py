# TransNeXt-Tiny with the authors' ImageNet-1k release.
# A config takes it out of its bases into its model: `_base_.pop('backbone')`.
backbone = dict(
    type='bioattn_mm.TransNeXt',
    arch='tiny',
    # As the authors train and test: the position bias of `img_size`, which a config adds, resized to the actual size.
    bias_mode='interpolate',
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://huggingface.co/DaiShiResearch/transnext-tiny-224-1k/resolve/main/transnext_tiny_224_1k.pth',
    ),
)
