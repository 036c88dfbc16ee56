# UperNet that tests on small images, too.
_base_ = '../tools/upernet_small.py'
test_pipeline = _base_.test_dataloader.dataset.pipeline
test_pipeline[1].scale = (256, 128)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
