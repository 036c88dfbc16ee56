# PerViT in any framework: the authors' ImageNet weights by variant, to be put into `checkpoints` by hand.
checkpoints = {arch: f'checkpoints/pervit_{arch}.pth' for arch in ('tiny', 'small', 'medium')}
weights_source = (
    "the authors' ImageNet-1k release: download it by way of https://github.com/juhongm999/pervit, in a browser, and "
    'put it there by hand'
)
