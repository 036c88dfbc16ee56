_base_ = ['./detection.py', './onnx.py']
ir_config = dict(
    output_names=['dets', 'labels'],
    dynamic_axes=dict(input={2: 'height', 3: 'width'}, dets={1: 'detections'}, labels={1: 'detections'}),
)
