# Instance and panoptic segmentation of Mask2Former with onnxruntime; images of any size, one at a time.
_base_ = ['_base_/panoptic-seg_dynamic.py', '_base_/onnxruntime.py']
