# TransNeXt-Micro with the authors' ImageNet-1k release.
_base_ = './transnext_tiny.py'
backbone = dict(
    arch='micro',
    init_cfg=dict(
        checkpoint='https://huggingface.co/DaiShiResearch/transnext-micro-224-1k/resolve/main/transnext_micro_224_1k.pth'
    ),
)
