# GABSwin-Small with Swin's ImageNet-1k release, without Gaussians, and its parameters without weight decay.
# A config takes both out of its bases: `_base_.pop('backbone')`, `_base_.pop('custom_keys')`.
backbone = dict(
    type='bioattn_mm.GABSwin',
    arch='small',
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth',
    ),
)
custom_keys = {name: dict(decay_mult=0.0) for name in ('gaussian', 'relative_position_bias_table', 'norm')}
