# mmdet's Mask2Former, for instance and panoptic segmentation: for each query the logits of its classes, (B, queries,
# classes + 1), and of its mask in the pixels of the input, (B, queries, H, W). mmdeploy makes instances and segments
# of them as the model's test_cfg says.
codebase_config = dict(
    type='mmdet', task='ObjectDetection', model_type='panoptic_end2end', module=['bioattn_mm.export.mmdeploy']
)
