# TransNeXt-Small, fine-tuned on ImageNet-1k for 5 epochs of 384 x 384 (TransNeXt, table 1).
# Weights: the authors' classifier of 224 x 224, fetched when training starts.
_base_ = ['../_base_/recipes/finetune_in1k_384px.py', '../_base_/backbones/transnext_classifier.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), arch='small', img_size=384, drop_path_rate=0.7),
    head=dict(in_channels=576),
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://huggingface.co/DaiShiResearch/transnext-small-224-1k/resolve/main/transnext_small_224_1k.pth',
    ),
)
optim_wrapper = dict(
    clip_grad=dict(max_norm=1.0, norm_type=2), paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys'))
)
