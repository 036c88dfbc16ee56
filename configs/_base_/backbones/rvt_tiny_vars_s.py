# VARS-S in RVT-Ti, pre-trained on ImageNet-1k.
# A config takes it out of its bases into its model: `_base_.pop('backbone')`.
backbone = dict(
    type='bioattn_mm.VARS',
    arch='rvt-tiny',
    attention='vars_s',
    drop_path_rate=0.1,
    init_cfg=dict(type='Pretrained', checkpoint='checkpoints/vars_rvt_tiny_vars_s.pth'),
)
