# Boxes and masks with TensorRT in half precision.
_base_ = ['_base_/instance-seg_dynamic.py', '_base_/tensorrt_fp16_coco.py']
