# ConViT-Base with the authors' ImageNet-1k release.
_base_ = './convit_tiny.py'
backbone = dict(arch='base', init_cfg=dict(checkpoint='https://dl.fbaipublicfiles.com/convit/convit_base.pth'))
