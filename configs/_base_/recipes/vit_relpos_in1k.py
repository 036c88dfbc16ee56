# The host of GABViT, timm's ViT with relative positions. All that timm says of the training of its weights ('sw') is:
# Swin's recipe with modifications, clipped gradients, averaged weights. The decay of the average is the default of
# timm's training script.
_base_ = './swin_in1k.py'
model = dict(data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3))
# A test image is the central 0.9 of the short side.
test_pipeline = [_base_.test_pipeline[0], dict(_base_.test_pipeline[1], scale=248), *_base_.test_pipeline[2:]]
tta_pipeline = [*test_pipeline[:-1], _base_.tta_pipeline[-1]]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
custom_hooks = [*_base_.custom_hooks, dict(type='bioattn_mm.ShardableEMAHook', momentum=0.0002)]
