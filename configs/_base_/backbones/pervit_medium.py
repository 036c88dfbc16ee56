# PerViT-Medium with the authors' ImageNet-1k release.
_base_ = './pervit_tiny.py'
backbone = dict(arch='medium', drop_path_rate=0.2, init_cfg=dict(checkpoint='checkpoints/pervit_medium.pth'))
