# PerViT in any framework: the authors' ImageNet weights by variant, to be put into `checkpoints` by hand.
checkpoints = {arch: f'checkpoints/pervit_{arch}.pth' for arch in ('tiny', 'small', 'medium')}
