# UperNet on ADE20K, 160k iterations; a config adds the backbone and the `in_channels` of both heads.
_base_ = [
    '../models/upernet.py',
    '../datasets/ade20k.py',
    '../schedules/adamw_160k.py',
    '../runtimes/mmseg.py',
]
