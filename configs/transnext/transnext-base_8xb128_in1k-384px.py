# TransNeXt-Base, fine-tuned on ImageNet-1k for 5 epochs of 384 x 384 (TransNeXt, table 1).
# Weights: the authors' classifier of 224 x 224, fetched when training starts.
_base_ = './transnext-small_8xb128_in1k-384px.py'
model = dict(
    backbone=dict(arch='base', drop_path_rate=0.8),
    head=dict(in_channels=768),
    init_cfg=dict(
        checkpoint='https://huggingface.co/DaiShiResearch/transnext-base-224-1k/resolve/main/transnext_base_224_1k.pth'
    ),
)
