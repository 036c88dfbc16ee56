# TransNeXt-Small with the authors' ImageNet-1k release.
_base_ = './transnext_tiny.py'
backbone = dict(
    arch='small',
    init_cfg=dict(
        checkpoint='https://huggingface.co/DaiShiResearch/transnext-small-224-1k/resolve/main/transnext_small_224_1k.pth'
    ),
)
