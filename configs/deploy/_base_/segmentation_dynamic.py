_base_ = ['./segmentation.py', './onnx.py']
ir_config = dict(
    output_names=['output'],
    dynamic_axes=dict(input={2: 'height', 3: 'width'}, output={2: 'height', 3: 'width'}),
)
