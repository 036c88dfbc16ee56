# DeiT's recipe: in1k.py with repeated augmentation. An epoch has as many images as without, of a third of the data:
# each three times, on different GPUs.
_base_ = './in1k.py'
train_dataloader = dict(sampler=dict(type='RepeatAugSampler', num_repeats=3))
