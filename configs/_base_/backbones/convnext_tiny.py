# ConvNeXt-T with its ImageNet-1k release as mmpretrain converted it.
# A config takes it out of its bases into its model: `_base_.pop('backbone')`.
backbone = dict(
    type='mmpretrain.ConvNeXt',
    arch='tiny',
    out_indices=[0, 1, 2, 3],
    drop_path_rate=0.4,
    layer_scale_init_value=1.0,
    gap_before_final_norm=False,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://mmassets.onedl.ai/mmclassification/v0/convnext/downstream/convnext-tiny_3rdparty_32xb128-noema_in1k_20220301-795e9634.pth',
        prefix='backbone.',
    ),
)
