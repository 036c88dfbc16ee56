# TransNeXt's fine-tuning at 384 x 384 pixels: 5 epochs at one rate, with mixup and without cutmix. A config adds the
# classifier of 224 x 224 to start from.
_base_ = './deit_in1k.py'
model = dict(train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8)]))
train_pipeline = [
    dict(step, scale=384) if step.type == 'RandomResizedCrop' else step for step in _base_.train_pipeline
]
# The whole image, distorted to a square.
test_pipeline = [
    _base_.test_pipeline[0],
    dict(type='Resize', scale=(384, 384), backend='pillow', interpolation='bicubic'),
    dict(type='PackInputs'),
]
tta_pipeline = [*test_pipeline[:-1], _base_.tta_pipeline[-1]]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=1e-5))
param_scheduler = []
train_cfg = dict(max_epochs=5)
