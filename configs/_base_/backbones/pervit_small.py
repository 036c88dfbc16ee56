# PerViT-Small with the authors' ImageNet-1k release.
_base_ = './pervit_tiny.py'
backbone = dict(arch='small', drop_path_rate=0.1, init_cfg=dict(checkpoint='checkpoints/pervit_small.pth'))
