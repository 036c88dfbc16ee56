# GAB in any framework: ImageNet weights of the hosts (timm's and the Swin authors'), which have no Gaussians yet, and
# the parameters without weight decay. 'gaussian' is the amplitude and the standard deviation of each layer.
timm_releases = 'https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-tpu-weights'
checkpoints = dict(
    vit_small=f'{timm_releases}/vit_relpos_small_patch16_224-sw-ec2778b4.pth',
    vit_base=f'{timm_releases}/vit_relpos_base_patch16_224-sw-49049aed.pth',
    swin_small='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/'
    'swin_small_patch4_window7_224.pth',
)
no_decay = {key: dict(decay_mult=0.0) for key in ('gaussian', 'relative_position_bias_table', 'norm')}
