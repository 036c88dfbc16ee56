# What every config with PerViT shares.
# Printed where the file of weights that a config names is missing.
weights_source = (
    "the authors' ImageNet-1k release: download it by way of https://github.com/juhongm999/pervit, in a browser, and "
    'put it there by hand'
)
# The stem has batch norm, and a GPU sees two images at a time: take the statistics over all GPUs.
sync_bn = 'torch'
