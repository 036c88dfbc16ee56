# Mask2Former's 50 epochs of COCO, 16 images a step: two steps of the learning rate instead of its steady decay.
_base_ = './mask2former_160k.py'
train_cfg = dict(max_iters=368750)
param_scheduler = [
    dict(type='MultiStepLR', milestones=[327778, 355092], gamma=0.1, by_epoch=False, begin=0, end=368750)
]
