# An ONNX file of standard operators.
ir_config = dict(
    type='onnx',
    export_params=True,
    keep_initializers_as_inputs=False,
    # GridSample, and RoIAlign as mmcv has it, came with 16; mmdeploy's own operators are written for up to 17.
    opset_version=17,
    save_file='end2end.onnx',
    input_names=['input'],
    input_shape=None,
    optimize=False,
)
