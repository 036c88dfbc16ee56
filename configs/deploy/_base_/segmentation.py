# mmseg's output: the scores of all classes in every pixel of the input, (B, classes, H, W).
codebase_config = dict(
    type='mmseg',
    task='Segmentation',
    model_type='end2end',
    with_argmax=False,
    module=['bioattn_mm.export.mmdeploy'],
)
