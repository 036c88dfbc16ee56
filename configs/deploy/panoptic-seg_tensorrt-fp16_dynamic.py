# Instance and panoptic segmentation of Mask2Former with TensorRT in half precision.
_base_ = ['_base_/panoptic-seg_dynamic.py', '_base_/tensorrt_fp16_coco.py']
