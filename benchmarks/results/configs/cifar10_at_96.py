# At 96 pixels, whose 1.5-, 2- and 3-fold are sizes that TransNeXt tests with: as larger images in the paper, an image
# is tested as the central 7/8 of its short side.
_base_ = './cifar10.py'
size = 96
train_pipeline = [
    dict(step, scale=size) if step.type == 'RandomResizedCrop' else step for step in _base_.train_pipeline
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(type='ResizeEdge', scale=109, edge='short'),
    dict(type='CenterCrop', crop_size=size),
    _base_.test_pipeline[-1],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
