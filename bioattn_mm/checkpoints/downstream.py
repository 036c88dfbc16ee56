"""Converting the authors' whole detectors and segmentors to the names of this package.

TransNeXt's were trained with mmdet 2.28 (Mask R-CNN), mmdet 3.0 (DINO), mmseg 0.30 (UperNet) and mmseg 1.0
(Mask2Former). Their backbones have the names of the ImageNet release, under `backbone.`. Their heads have the names
of today's mmdet and mmseg already, except that Mask2Former of mmdet 2 and of mmseg before 1.0 numbers attentions and
feed-forward networks in the order in which they run.
"""

import functools
import re
from dataclasses import dataclass

from torch import Tensor, nn

from ..errors import InputError
from .files import first_of
from .loading import check_fit, match_backbone
from .meta_models import on_meta

# Names of heads, older -> today's, as regular expressions applied in order.
RENAMED_HEADS = [
    (r'(\.pixel_decoder\.encoder\.layers\.\d+)\.attentions\.0\.', r'\1.self_attn.'),
    (r'(\.transformer_decoder\.layers\.\d+)\.attentions\.0\.', r'\1.cross_attn.'),
    (r'(\.transformer_decoder\.layers\.\d+)\.attentions\.1\.', r'\1.self_attn.'),
    (r'(\.layers\.\d+)\.ffns\.0\.', r'\1.ffn.'),
]

# Today's names of each framework's neck and heads, by module; entries of other modules are refused. `--config` of
# tools/convert_checkpoint.py compares every name and shape.
HEADS = {
    'Mask R-CNN': r'(neck|rpn_head|roi_head)\..+',
    'DINO': r'(neck|(en|de)coder|bbox_head|memory_trans_(fc|norm)|(query_embed|dn_query_generat)\w+)\..+|level_embed',
    'UperNet': r'(decode_head\.(psp_modules|(fpn_)?bottleneck|(lateral|fpn)_convs|conv_seg)|auxiliary_head)\..+',
    'Mask2Former': r'decode_head\.((pixel|transformer)_decoder|query_(embed|feat)|level_embed|(cls|mask)_embed)\..+',
}

# Tables that are computed here for the size of each image, and that mmcv 1 saves though they are not persistent; what
# the config sets; and the second set of weights of an averaging hook (EMA), of which mmdet and mmseg load the first.
LEFT_OUT = re.compile(r'backbone\.relative_(pos_index|coords_table)\d|data_preprocessor\.(mean|std)|ema_\w+')


@dataclass
class Conversion:
    """A converted file.

    Attributes:
        framework: One of `HEADS`.
        variant: One of TransNeXt's `arch_settings`.
        weights: The weights under the names of this package.
        counts: Numbers of entries of the 'backbone', the 'neck' and the 'heads'.
        left_out: Names of the entries that are recognised and not in `weights`, see `LEFT_OUT`.
    """

    framework: str
    variant: str
    weights: dict[str, Tensor]
    counts: dict[str, int]
    left_out: list[str]


def convert(path: str, state_dict: dict[str, Tensor], backbone_type: type[nn.Module]) -> Conversion:
    """Bring the weights of a whole detector or segmentor of the authors' into the names of this package.

    Args:
        path: The file, for messages.
        state_dict: Its weights, without `module.`.
        backbone_type: Class of the backbone, `TransNeXt`.

    Raises:
        InputError: It is another kind of file, has entries that are not understood, or its backbone is incomplete.
    """
    if {'backbone.stages.0.patch_embed.proj.weight', 'stages.0.patch_embed.proj.weight'} & state_dict.keys():
        raise InputError(f'{path} has the names of this package already: nothing to convert')
    if 'patch_embed1.proj.weight' in state_dict:
        raise InputError(
            f'{path} is a backbone alone, such as the ImageNet release: nothing to convert, '
            f"init_cfg=dict(type='Pretrained', checkpoint='{path}') of the backbone takes it as it is"
        )
    backbone, others, left_out = {}, {}, []
    for name, value in state_dict.items():
        if LEFT_OUT.fullmatch(name):
            left_out.append(name)
        elif name.startswith('backbone.'):
            backbone[name.removeprefix('backbone.')] = value
        else:
            others[functools.reduce(lambda n, rule: re.sub(*rule, n), RENAMED_HEADS, name)] = name, value

    variant, own, backbone, unknown = _match_variant(backbone_type, backbone)
    # The framework is the one that has all names, or the one that lacks the fewest, for the message.
    unknown_to = {
        framework: [name for new, (name, _) in others.items() if not re.fullmatch(heads, new)]
        for framework, heads in HEADS.items()
    }
    framework = min(HEADS, key=lambda framework: len(unknown_to[framework]))
    unknown = [f'backbone.{name}' for name in unknown] + unknown_to[framework]
    if unknown:
        raise InputError(
            f'{path} has {len(unknown)} entries of {len(state_dict)} that are neither of {backbone_type.__name__} '
            f'nor of {", ".join(HEADS)} as mmdet 2 and 3 and mmseg 0 and 1 name them: {first_of(unknown)}'
        )
    check_fit(f'{path} (its backbone taken as {backbone_type.__name__}-{variant.capitalize()})', backbone, own)
    if not others:
        raise InputError(f'{path} has a backbone and no head: the backbone alone takes it as it is, with init_cfg')
    heads = {name: value for name, (_, value) in others.items()}
    num_neck = sum(name.startswith('neck.') for name in heads)
    counts = dict(backbone=len(backbone), neck=num_neck, heads=len(heads) - num_neck)
    weights = {f'backbone.{name}': value for name, value in backbone.items()} | heads
    return Conversion(framework, variant, weights, counts, left_out)


def _match_variant(
    backbone_type: type[nn.Module], state_dict: dict[str, Tensor]
) -> tuple[str, dict[str, Tensor], dict[str, Tensor], list[str]]:
    """The variant that fits best: its name, its own state dict, the weights under its names, unknown names."""
    matches = {}
    for variant in backbone_type.arch_settings:
        with on_meta():
            own = backbone_type(arch=variant).state_dict()
        matches[variant] = own, *match_backbone(backbone_type.release, state_dict, own)

    def misfit(variant: str) -> int:
        own, weights, unknown = matches[variant]
        return len(unknown) + sum(name not in weights or weights[name].shape != own[name].shape for name in own)

    variant = min(matches, key=misfit)
    return variant, *matches[variant]
