# Boxes with TensorRT in half precision.
_base_ = ['_base_/detection_dynamic.py', '_base_/tensorrt_fp16_coco.py']
