# VARS-SD in RVT-Ti, and what every detector and segmentor with VARS shares.
# A config takes the backbone out of its bases into its model: `_base_.pop('backbone')`.
_base_ = ['./rvt_tiny_vars_sd.py', './vars_weights.py']
# The backbone has batch norm, and a GPU sees two images at a time: take the statistics over all GPUs.
sync_bn = 'torch'
