# GFNet's recipe: clipped gradients, no random erasing, no repeated augmentation.
_base_ = './in1k.py'
train_pipeline = [step for step in _base_.train_pipeline if step.type != 'RandomErasing']
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0, norm_type=2))
