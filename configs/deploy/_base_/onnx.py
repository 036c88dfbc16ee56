# An ONNX file with standard operators only.
ir_config = dict(
    type='onnx',
    export_params=True,
    keep_initializers_as_inputs=False,
    # GridSample and mmcv's kind of RoIAlign need 16; mmdeploy supports up to 17.
    opset_version=17,
    save_file='end2end.onnx',
    input_names=['input'],
    input_shape=None,
    optimize=False,
)
