# Fine-tuning on a small data set with the settings of GAB's appendix: SGD with momentum, one rate, 200 epochs of 64
# images a step. Chosen here, for it names no others: a cosine without warm-up, crops and flips alone, and the weights
# of ImageNet-1k to start from. A config adds the data set's recipe, the backbone and the head's `in_channels`.
_base_ = [
    '../models/classifier.py',
    '../datasets/imagenet_224.py',
    '../schedules/adamw_in1k_300e.py',
    '../runtimes/mmpretrain.py',
]
model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3),
    head=dict(loss=dict(_delete_=True, type='CrossEntropyLoss')),
    train_cfg=None,
)
train_pipeline = [*_base_.train_pipeline[:3], _base_.train_pipeline[-1]]
# A test image is the central 0.9 of the short side, as in the pre-training.
test_pipeline = [_base_.test_pipeline[0], dict(_base_.test_pipeline[1], scale=248), *_base_.test_pipeline[2:]]
tta_pipeline = [*test_pipeline[:-1], _base_.tta_pipeline[-1]]
train_dataloader = dict(batch_size=64, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=64, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='SGD', lr=0.01, momentum=0.9, weight_decay=5e-4),
    paramwise_cfg=dict(flat_decay_mult=None, custom_keys=dict(gaussian=dict(decay_mult=0.0))),
)
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end=200, convert_to_iter_based=True)]
train_cfg = dict(max_epochs=200)
auto_scale_lr = dict(base_batch_size=64)
