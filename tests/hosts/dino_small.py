# DINO small enough to be built and run in seconds, on small images.
_base_ = '../../configs/transnext/dino_4scale_micro_coco.py'
model = dict(
    num_queries=20,
    backbone=dict(arch=dict(_delete_=True, embed_dims=(24, 48, 48, 48), num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1))),
    neck=dict(in_channels=[48, 48, 48]),
    encoder=dict(num_layers=1),
    decoder=dict(num_layers=1),
    test_cfg=dict(max_per_img=20),
)
test_pipeline = _base_.test_dataloader.dataset.pipeline
test_pipeline[1].scale = (256, 128)
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
