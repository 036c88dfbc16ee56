# GABViT-Base, fine-tuned on Stanford Cars (GAB, table 3).
# Weights: timm's classifier of ImageNet-1k without Gaussians, fetched when training starts;
# its position bias is drawn anew.
_base_ = ['../../_base_/recipes/finetune_cars.py', '../../_base_/backbones/gabvit_base_classifier.py']
model = dict(backbone=dict(_base_.pop('backbone'), new_position_bias=True), neck=None, head=dict(in_channels=768))
