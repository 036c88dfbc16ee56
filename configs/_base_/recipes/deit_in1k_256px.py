# DeiT's recipe at 256 x 256 pixels. As at 224, a test image is the central 7/8 of the short side.
_base_ = './deit_in1k.py'
train_pipeline = [
    dict(step, scale=256) if step.type == 'RandomResizedCrop' else step for step in _base_.train_pipeline
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=292),
    dict(type='CenterCrop', crop_size=256),
    dict(type='PackInputs'),
]
tta_pipeline = [*test_pipeline[:-1], _base_.tta_pipeline[-1]]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
