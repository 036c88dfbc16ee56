# Segmentation with onnxruntime; images of 512x512 pixels (height x width).
_base_ = './segmentation_onnxruntime_dynamic.py'
ir_config = dict(dynamic_axes=None, input_shape=[512, 512])
