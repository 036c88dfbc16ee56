# Instance and panoptic segmentation of Mask2Former with TorchScript.
_base_ = ['_base_/panoptic-seg.py', '_base_/torchscript.py']
ir_config = dict(output_names=['cls_logits', 'mask_logits'])
