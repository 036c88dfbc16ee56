# ConViT-Tiny on CIFAR-100 with the recipe of ImageNet-1k: the paper says 'without any tuning' (ConViT, section 3).
# Which of its models, for how many epochs and from which weights it has in its supplement alone; these are ours.
# Weights: random.
_base_ = ['../../_base_/recipes/cifar100.py', '../../_base_/backbones/convit_classifier.py']
model = dict(backbone=_base_.pop('backbone'), neck=None, head=dict(in_channels=192))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
