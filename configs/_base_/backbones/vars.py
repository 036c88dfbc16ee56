# VARS in any framework: ImageNet weights by host and attention, to be put into `checkpoints` by hand.
checkpoints = {
    f'{arch}_{attention}': f'checkpoints/vars_{arch}_{attention}.pth'
    for arch in ('rvt_tiny', 'deit_tiny')
    for attention in ('vars_s', 'vars_d', 'vars_sd')
}
# The backbone normalises by batch statistics, and a detector's GPU has two pictures.
sync_bn = 'torch'
