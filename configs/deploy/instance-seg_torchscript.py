# Boxes and masks with TorchScript.
_base_ = ['_base_/detection.py', '_base_/torchscript.py']
ir_config = dict(output_names=['dets', 'labels', 'masks'])
