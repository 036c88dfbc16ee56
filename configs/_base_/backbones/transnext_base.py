# TransNeXt-Base with the authors' ImageNet-1k release.
_base_ = './transnext_tiny.py'
backbone = dict(
    arch='base',
    init_cfg=dict(
        checkpoint='https://huggingface.co/DaiShiResearch/transnext-base-224-1k/resolve/main/transnext_base_224_1k.pth'
    ),
)
