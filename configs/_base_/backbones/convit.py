# ConViT in any framework: the authors' ImageNet weights by variant.
checkpoints = {arch: f'https://dl.fbaipublicfiles.com/convit/convit_{arch}.pth' for arch in ('tiny', 'small', 'base')}
weights_source = "the authors' ImageNet-1k release, fetched when training starts"
