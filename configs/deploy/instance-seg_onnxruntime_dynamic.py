# Boxes and masks with onnxruntime; images of any size, one at a time.
_base_ = ['_base_/instance-seg_dynamic.py', '_base_/onnxruntime.py']
