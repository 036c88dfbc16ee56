# Instance and panoptic segmentation of Mask2Former with onnxruntime; images of 800x1344 pixels (height x width).
_base_ = './panoptic-seg_onnxruntime_dynamic.py'
ir_config = dict(dynamic_axes=None, input_shape=[1344, 800])
