# VARS in any framework: ImageNet weights by host and attention, to be put into `checkpoints` by hand.
checkpoints = {
    f'{arch}_{attention}': f'checkpoints/vars_{arch}_{attention}.pth'
    for arch in ('rvt_tiny', 'deit_tiny')
    for attention in ('vars_s', 'vars_d', 'vars_sd')
}
weights_source = (
    'nobody publishes ImageNet weights of VARS-S in RVT-Ti or of VARS in DeiT-Ti: pre-train the backbone with '
    "mmpretrain's ImageClassifier and put the file there, or take a config of RVT-Ti with VARS-D or VARS-SD"
)
# Of RVT-Ti with VARS-D and VARS-SD.
released_weights_source = (
    "the authors' ImageNet-1k release: download it by way of https://github.com/bfshi/VARS and put it there by hand"
)
# The released weights were trained with 5 steps, the default of their code; the paper says 3.
released_num_steps = 5
# The backbone normalises by batch statistics, and a detector's GPU has two images.
sync_bn = 'torch'
