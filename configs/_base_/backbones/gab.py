# GAB in any framework: ImageNet weights of the hosts, which have no Gaussians yet, and rules for the optimizer. The
# Gaussians, the amplitude and the standard deviation of each layer, have no weight decay and learn at the full rate.
timm_releases = 'https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-tpu-weights'
checkpoints = dict(
    vit_small=f'{timm_releases}/vit_relpos_small_patch16_224-sw-ec2778b4.pth',
    vit_base=f'{timm_releases}/vit_relpos_base_patch16_224-sw-49049aed.pth',
    swin_small='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/'
    'swin_small_patch4_window7_224.pth',
)
weights_source = (
    "timm's (ViT) or the Swin authors' ImageNet-1k release of the host, which has no Gaussians: they start at their "
    'initial values; fetched when training starts'
)
# timm trained its vit_relpos weights with mean = std = 0.5.
vit_normalisation = dict(mean=[127.5] * 3, std=[127.5] * 3)
no_decay = {key: dict(decay_mult=0.0) for key in ('gaussian', 'relative_position_bias_table', 'norm')}
new_parameters = ['gaussian']
