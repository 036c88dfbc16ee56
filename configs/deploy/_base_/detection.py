# mmdet's outputs: boxes with scores (B, N, 5), classes (B, N), and for instance segmentation mask probabilities
# (B, N, 28, 28), which mmdeploy pastes into the image. What the model's test_cfg sets is used instead of values here.
codebase_config = dict(
    type='mmdet',
    task='ObjectDetection',
    model_type='end2end',
    post_processing=dict(
        score_threshold=0.05,
        confidence_threshold=0.005,
        iou_threshold=0.5,
        max_output_boxes_per_class=200,
        pre_top_k=5000,
        keep_top_k=100,
        background_label_id=-1,
    ),
    module=['bioattn_mm.export.mmdeploy'],
)
