# Mask2Former on ADE20K, 160k iterations; a config adds the backbone and the head's `in_channels`.
_base_ = [
    '../models/mask2former.py',
    '../datasets/ade20k_mask2former.py',
    '../schedules/mask2former_160k.py',
    '../runtimes/mmseg.py',
]
