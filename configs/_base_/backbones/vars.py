# VARS-SD in RVT-Ti, and what every detector and segmentor with VARS shares.
# A config takes the backbone out of its bases into its model: `_base_.pop('backbone')`.
_base_ = './rvt_tiny_vars_sd.py'
# Printed where the file of weights that a config names is missing.
weights_source = (
    'of RVT-Ti with VARS-D or VARS-SD, download the ImageNet-1k release of the authors by way of '
    'https://github.com/bfshi/VARS and put it there by hand; nobody publishes weights of the others: pre-train the '
    "backbone with mmpretrain's ImageClassifier and put the file there"
)
# The backbone has batch norm, and a GPU sees two images at a time: take the statistics over all GPUs.
sync_bn = 'torch'
