# ImageNet-1k from random weights, 300 epochs; a config adds the backbone and the head's `in_channels`.
_base_ = [
    '../models/classifier.py',
    '../datasets/imagenet_224.py',
    '../schedules/adamw_in1k_300e.py',
    '../runtimes/mmpretrain.py',
]
