"""The smallest models that have every kind of layer of their system, as classifier, segmentor and backbone alone."""

from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from ..tools.running import ROOT

TRANSNEXT = dict(type='TransNeXt', arch=dict(embed_dims=(8, 16, 16, 16), num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1)))
VARS = dict(type='VARS', arch=dict(block='rvt', embed_dims=[8, 16], depths=[1, 1], num_heads=[2, 2], feature_ratio=1))
DEIT = dict(VARS, arch=dict(block='deit', embed_dims=[8], depths=[2], num_heads=[2], feature_ratio=1))
BACKBONES = {
    'TransNeXt': TRANSNEXT,
    'TransNeXt, interpolated': dict(TRANSNEXT, bias_mode='interpolate', img_size=224),
    'TransNeXt, pool_size': dict(TRANSNEXT, pool_size=4),
    'ConViT': dict(
        type='ConViT', arch=dict(embed_dims=16, num_layers=2, num_heads=4), local_up_to_layer=1, out_indices=(0, 1)
    ),
    'PerViT': dict(
        type='PerViT',
        arch=dict(embed_dims=(4, 8, 8, 12), depths=(1, 1, 1, 1), stem_channels=(4, 4, 4), num_heads=2),
        out_indices=(0, 3),
    ),
    'GABViT': dict(type='GABViT', arch=dict(embed_dims=16, num_layers=2, num_heads=2), out_indices=(0, 1)),
    # The second block of a stage shifts its windows.
    'GABSwin': dict(type='GABSwin', arch=dict(embed_dims=8, depths=(2, 1, 1, 1), num_heads=(1, 2, 2, 2))),
    'VARS-S': dict(VARS, attention='vars_s', out_indices=(0, 1)),
    'VARS-D': dict(VARS, attention='vars_d', out_indices=(0, 1)),
    'VARS-SD': dict(VARS, attention='vars_sd', out_indices=(0, 1)),
    'VARS-D in DeiT': dict(DEIT, attention='vars_d', out_indices=(0, 1)),
}
# Where a classifier takes something else than the average of the last map.
OUT_TYPES = {'ConViT': 'cls_token', 'GABViT': 'avg_featmap', 'VARS-D': 'avg_featmap', 'VARS-S': 'avg_featmap'}


def build(name: str, head: str | None) -> tuple[nn.Module, Config]:
    """A model with random weights, in eval mode, and its config.

    Args:
        name: Of `BACKBONES`.
        head: 'UPerHead' or 'FCNHead' of a segmentor, 'classifier', or None, which leaves the segmentor's head unused.
    """
    arguments = dict(BACKBONES[name], type=f'bioattn_mm.{BACKBONES[name]["type"]}')
    backbone = MODELS.build(arguments)
    channels = [backbone.stage_channels[index] for index in backbone.out_indices]
    if head == 'classifier':
        config = Config.fromfile(ROOT / 'configs/transnext/transnext-micro_8xb128_in1k.py')
        arguments['out_indices'] = (len(backbone.stage_channels) - 1,)
        if name in OUT_TYPES:
            arguments['out_type'] = OUT_TYPES[name]
            config.model.neck = None
        config.model.head.update(num_classes=3, in_channels=channels[-1])
    else:
        is_plain = len(channels) < 4
        system = 'convit/upernet_tiny_ade20k' if is_plain else 'transnext/upernet_micro_ade20k'
        config = Config.fromfile(ROOT / f'configs/{system}.py')
        if is_plain:
            strides = [backbone.stage_strides[index] for index in backbone.out_indices]
            sources = (0, 0, 1, 1)
            scales = tuple(strides[source] / stride for source, stride in zip(sources, (4, 8, 16, 32)))
            config.model.neck.update(in_channels=channels, out_channels=8, stride=strides)
            config.model.neck.update(sources=sources, scales=scales)
            channels = [8] * 4
        common = dict(channels=8, num_classes=3)
        config.model.decode_head.update(in_channels=channels, **common)
        if head == 'FCNHead':
            one_map = dict(in_channels=channels[-1], in_index=3, num_convs=1, align_corners=False)
            config.model.decode_head = dict(type=head, **one_map, **common)
        config.model.auxiliary_head = None
    config.model.backbone = arguments
    init_default_scope(config.default_scope)
    return MODELS.build(config.model).eval(), config
