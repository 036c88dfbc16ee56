# Fine-tuning on a small data set as the authors' train.py of GAB does, with the settings of the paper's
# appendix: SGD with momentum, a cosine from epoch to epoch, 200 epochs of 64 images, ImageNet's mean, and the
# weights of ImageNet-1k to start from. A config adds the data set's recipe, the backbone and the head's
# `in_channels`. The result is the test accuracy of the best checkpoint by validation.
_base_ = [
    '../models/classifier.py',
    '../datasets/imagenet_224.py',
    '../schedules/adamw_in1k_300e.py',
    '../runtimes/mmpretrain.py',
]
model = dict(head=dict(loss=dict(_delete_=True, type='CrossEntropyLoss')), train_cfg=None)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='NumpyToPIL', to_rgb=True),
    dict(type='torchvision/RandomResizedCrop', size=256, scale=(0.8, 1.0)),
    dict(type='torchvision/RandomRotation', degrees=15),
    dict(type='torchvision/ColorJitter', brightness=0.4, contrast=0.4, saturation=0.4),
    dict(type='torchvision/RandomHorizontalFlip'),
    dict(type='torchvision/CenterCrop', size=224),
    dict(type='PILToNumpy', to_bgr=True),
    dict(type='PackInputs'),
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], interpolation='bilinear'),
    *_base_.test_pipeline[2:],
]
tta_pipeline = [*test_pipeline[:-1], _base_.tta_pipeline[-1]]
train_dataloader = dict(batch_size=64, drop_last=False, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=64, dataset=dict(split='val', pipeline=test_pipeline))
test_dataloader = dict(batch_size=64, dataset=dict(split='test', pipeline=test_pipeline))
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='SGD', lr=0.01, momentum=0.9, weight_decay=5e-4),
    paramwise_cfg=dict(flat_decay_mult=None, custom_keys=dict(gaussian=dict(decay_mult=0.0))),
)
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end=200)]
train_cfg = dict(max_epochs=200)
auto_scale_lr = dict(base_batch_size=64)
