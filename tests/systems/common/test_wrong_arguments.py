"""What backbones, layers and necks refuse when they are built, in one line that says what was expected."""

import pytest
import torch
from torch import nn

from bioattn_mm.errors import InputError
from bioattn_mm.registry import MODELS
from bioattn_mm.systems.common.building import build_layer
from bioattn_mm.systems.common.simple_feature_pyramid import SimpleFeaturePyramid

from .small_backbones import ARCH, CASES, every_backbone

HEADS = 'embed_dims must be a multiple of num_heads, got {} and {}'


def build(name: str, **options: object) -> nn.Module:
    return MODELS.build(dict(type=f'bioattn_mm.{name}', **options))


@every_backbone
def test_every_backbone_refuses_wrong_stages_and_archs(name: str) -> None:
    last = CASES[name].num_stages - 1
    for options, message in (
        (dict(out_indices=(0, last + 1)), rf'out_indices must be stages 0 to {last}, got \(0, {last + 1}\)'),
        (dict(out_indices=()), rf'out_indices must be stages 0 to {last}, got \(\)'),
        (dict(frozen_stages=last + 1), f'frozen_stages must be -1 to {last}, got {last + 1}'),
        (dict(in_channels=0), 'in_channels must be the number of channels of the images'),
        (dict(arch='huge'), r"arch must be one of .* or a dict, got 'huge'"),
        (dict(arch=dict(num_heads=2)), 'arch as a dict needs the keys'),
    ):
        with pytest.raises(InputError, match=message):
            build(name, **dict(arch=ARCH[name]) | options)


# Name of the class, its arguments, of which `arch` has what differs, and what is said.
REFUSED = [
    ('TransNeXt', dict(arch=dict(depths=(1, 1))), r'depths of arch needs 4 values, got \(1, 1\)'),
    ('TransNeXt', dict(arch=dict(num_heads=(3, 2, 3, 4))), HEADS.format(8, 3)),
    ('TransNeXt', dict(bias_mode='stretch'), "bias_mode must be 'extrapolate' or 'interpolate', got 'stretch'"),
    ('TransNeXt', dict(window_size=4), 'window_size must be odd and positive, got 4'),
    ('TransNeXt', dict(token_mixers=[{}]), r'token_mixers must be one dict or 4 of them, got \[\{\}\]'),
    ('TransNeXt', dict(token_mixers=dict(scale='none')), "a layer must be a dict with its type, got 'none'"),
    ('TransNeXt', dict(channel_mixer=dict(type='Glu')), "a class or its name in the registry .* got 'Glu'"),
    ('GABSwin', dict(arch=dict(num_heads=(3, 3, 3, 3))), HEADS.format(16, 3)),
    ('GABSwin', dict(sigma=0.0), 'sigma must be positive, got 0.0'),
    ('GABViT', dict(arch=dict(num_heads=3)), HEADS.format(16, 3)),
    ('ConViT', dict(local_up_to_layer=13), 'local_up_to_layer must be 0 to 12, got 13'),
    ('ConViT', dict(token_mixers=dict(gate=0)), 'GPSA has no argument gate: expected some of embed_dims, num_'),
    ('ConViT', dict(out_type='cls_token', out_indices=(9, 11)), 'needs out_indices from 10 on'),
    ('PerViT', dict(arch=dict(num_heads=8)), HEADS.format(4, 8)),
    ('PerViT', dict(position_init='local'), "position_init must be .*, got 'local'"),
    ('PerViT', dict(out_type='cls_token'), "out_type must be one of featmap, avg_featmap, got 'cls_token'"),
    ('VARS', dict(arch=dict(block='swin')), "block of arch must be one of rvt, deit, gfnet, got 'swin'"),
    ('VARS', dict(arch=dict(depths=[12])), 'embed_dims, depths and num_heads of arch must be lists of one or'),
    ('VARS', dict(arch=dict(num_heads=[3, 4]), attention='vars_d'), HEADS.format(8, 3)),
    ('VARS', dict(attention='vars'), 'attention must be one of vars_s, vars_d, vars_sd, performer, softmax'),
    ('VARS', dict(num_steps=0), 'num_steps must be at least 1, got 0'),
    ('VARS', dict(threshold='hard'), "threshold must be one of soft, gelu, got 'hard'"),
    ('VARS', dict(sparsity=-0.1), 'sparsity must not be negative, got -0.1'),
    ('TimmBackbone', dict(model_name='vit_small_patch14_dino'), 'has no model .*; it has vit_small_patch14_dinov2'),
    ('TimmBackbone', dict(model_name='resnet18', out_indices=(5,)), r'must be 0 to 4 for resnet18, got \(5,\)'),
    ('TimmBackbone', dict(model_name='resnet18', frozen_stages=9), 'must be -1 to 4 for resnet18, got 9'),
    ('TimmBackbone', dict(model_name='resnet18', depths=3), 'cannot be built: .*unexpected keyword argument'),
    ('TimmBackbone', dict(model_name='poolformer_s12', frozen_stages=0), 'no group_matcher, by which stages are'),
    ('GPSA', dict(embed_dims=10, num_heads=3), HEADS.format(10, 3)),
    ('SoftmaxAttention', dict(embed_dims=10, num_heads=3), HEADS.format(10, 3)),
    ('PerformerAttention', dict(embed_dims=10, num_heads=3), HEADS.format(10, 3)),
    ('OtherConvGLU', dict(embed_dims=8, ratio=4, design=4), 'design must be 1, 2 or 3, got 4'),
    ('SimpleFeaturePyramid', dict(scales=(3, 1)), 'scales must be powers of two, got 3'),
    ('SimpleFeaturePyramid', dict(scales=(1, 0)), 'scales must be powers of two, got 0'),
    ('SimpleFeaturePyramid', dict(in_channels=[16, 16]), r'of the 4 scales needs one input: in_channels \[16, 16\]'),
    ('SimpleFeaturePyramid', dict(in_channels=[16, 8], stride=[16], sources=[0, 0, 0, 1]), 'stride must be an int'),
    ('SimpleFeaturePyramid', dict(in_channels=[16, 8], sources=[0, 0, 0, 0]), 'sources must name all of the 2'),
    ('SimpleFeaturePyramid', dict(head_strides=[8, 16, 32, 64]), r'the pyramid has \(4, 8, 16, 32\)'),
]


@pytest.mark.parametrize(('name', 'options', 'message'), REFUSED)
def test_wrong_arguments_are_refused(name: str, options: dict, message: str) -> None:
    if name in ARCH:
        options = options | dict(arch=ARCH[name] | options.get('arch', {}))
    elif name == 'SimpleFeaturePyramid':
        options = dict(in_channels=16, out_channels=8) | options
    with pytest.raises(InputError, match=message):
        build(name, **options)


def test_settings_of_a_layer_that_cannot_be_built() -> None:
    for settings, message in ((dict(ratio=4), 'got None'), (dict(type='LengthScaledAttention'), 'position_bias')):
        with pytest.raises(InputError, match=message):
            build_layer(settings, embed_dims=12, num_heads=3)


@pytest.mark.parametrize('size', [(31, 64), (64, 31), (0, 64)], ids=str)
def test_a_backbone_refuses_small_images(size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=rf'at least 32 pixels, got \(1, 3, {size[0]}, {size[1]}\)'):
        build('ConViT', arch=ARCH['ConViT'])(torch.zeros(1, 3, *size))


def test_a_pyramid_refuses_another_number_of_maps() -> None:
    with pytest.raises(InputError, match='expected 4 feature maps, as in in_channels, got 1'):
        SimpleFeaturePyramid([16] * 4, 8)((torch.zeros(1, 16, 2, 2),))
