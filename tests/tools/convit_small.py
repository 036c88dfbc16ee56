"""ConViT's classifier with two narrow blocks, on images of 64 x 64 pixels."""

_base_ = '../../configs/convit/convit-tiny_8xb128_in1k.py'
arch = dict(_delete_=True, embed_dims=32, num_layers=2, num_heads=4)
model = dict(backbone=dict(arch=arch, local_up_to_layer=1, out_indices=(1,)), head=dict(in_channels=32))
resize = dict(type='ResizeEdge', scale=73, edge='short', backend='pillow', interpolation='bicubic')
crop = dict(type='RandomResizedCrop', scale=64, backend='pillow', interpolation='bicubic')
train_pipeline = [_base_.train_pipeline[0], crop, *_base_.train_pipeline[2:]]
test_pipeline = [_base_.test_pipeline[0], resize, dict(type='CenterCrop', crop_size=64), _base_.test_pipeline[-1]]
workers = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(batch_size=2, drop_last=False, dataset=dict(pipeline=train_pipeline), **workers)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline), **workers)
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=3e-3))
param_scheduler = None
auto_scale_lr = dict(base_batch_size=2)
