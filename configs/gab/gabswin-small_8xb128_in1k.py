# GABSwin-Small on ImageNet-1k, 300 epochs of 224 x 224: the recipe of its host; GAB's text has none.
# Weights: random.
_base_ = '../_base_/recipes/swin_in1k.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.GABSwin',
        arch='small',
        out_indices=(3,),
        # As Swin's classifiers: the 7 x 7 map of the last stage is one window, which is not shifted.
        pad_small_map=False,
        drop_path_rate=0.3,
    ),
    head=dict(in_channels=768),
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={name: dict(decay_mult=0.0) for name in ('gaussian', 'relative_position_bias_table')}
    )
)
