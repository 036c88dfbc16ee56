# Segmentation with TorchScript.
_base_ = ['_base_/segmentation.py', '_base_/torchscript.py']
ir_config = dict(output_names=['output'])
