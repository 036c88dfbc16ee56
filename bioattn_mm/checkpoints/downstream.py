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
from ..on_meta import on_meta
from .files import dataset_meta_of, find_weights_key, first_of
from .loading import check_fit, match_backbone

# Names of heads, older -> today's, as regular expressions applied in order.
RENAMED_HEADS = [
    (r'(\.pixel_decoder\.encoder\.layers\.\d+)\.attentions\.0\.', r'\1.self_attn.'),
    (r'(\.transformer_decoder\.layers\.\d+)\.attentions\.0\.', r'\1.cross_attn.'),
    (r'(\.transformer_decoder\.layers\.\d+)\.attentions\.1\.', r'\1.self_attn.'),
    (r'(\.layers\.\d+)\.ffns\.0\.', r'\1.ffn.'),
]

_PARAM = r'(weight|bias)'
_GROUP_NORM = rf'gn\.{_PARAM}'
_BATCH_NORM = rf'bn\.({_PARAM}|running_mean|running_var|num_batches_tracked)'
_ATTENTION = rf'attn\.(in_proj_{_PARAM}|out_proj\.{_PARAM})'
_DEFORMABLE = rf'(sampling_offsets|attention_weights|value_proj|output_proj)\.{_PARAM}'
_REST_OF_LAYER = rf'(ffn\.layers\.(0\.0|1)|norms\.\d)\.{_PARAM}'

# Today's names of each framework's neck and heads; other entries are refused.
HEADS = {
    'Mask R-CNN': [
        rf'neck\.(lateral|fpn)_convs\.\d\.conv\.{_PARAM}',
        rf'rpn_head\.rpn_(conv|cls|reg)\.{_PARAM}',
        rf'roi_head\.bbox_head\.(shared_fcs\.\d|fc_cls|fc_reg)\.{_PARAM}',
        rf'roi_head\.mask_head\.(convs\.\d\.conv|upsample|conv_logits)\.{_PARAM}',
    ],
    'DINO': [
        rf'neck\.(extra_)?convs\.\d\.(conv\.weight|{_GROUP_NORM})',
        rf'encoder\.layers\.\d+\.(self_attn\.{_DEFORMABLE}|{_REST_OF_LAYER})',
        rf'decoder\.layers\.\d+\.(self_attn\.{_ATTENTION}|cross_attn\.{_DEFORMABLE}|{_REST_OF_LAYER})',
        rf'decoder\.(norm|ref_point_head\.layers\.\d)\.{_PARAM}',
        rf'bbox_head\.(cls_branches\.\d+|reg_branches\.\d+\.\d)\.{_PARAM}',
        rf'memory_trans_(fc|norm)\.{_PARAM}',
        r'level_embed|query_embedding\.weight|dn_query_generator\.label_embedding\.weight',
    ],
    'UperNet': [
        rf'decode_head\.(psp_modules\.\d\.1|(fpn_)?bottleneck|(lateral|fpn)_convs\.\d)\.(conv\.weight|{_BATCH_NORM})',
        rf'auxiliary_head\.convs\.\d\.(conv\.weight|{_BATCH_NORM})',
        rf'(decode|auxiliary)_head\.conv_seg\.{_PARAM}',
    ],
    'Mask2Former': [
        rf'decode_head\.pixel_decoder\.input_convs\.\d\.(conv\.{_PARAM}|{_GROUP_NORM})',
        rf'decode_head\.pixel_decoder\.(lateral|output)_convs\.\d\.(conv\.weight|{_GROUP_NORM})',
        rf'decode_head\.pixel_decoder\.encoder\.layers\.\d+\.(self_attn\.{_DEFORMABLE}|{_REST_OF_LAYER})',
        rf'decode_head\.pixel_decoder\.(mask_feature\.{_PARAM}|level_encoding\.weight)',
        rf'decode_head\.transformer_decoder\.layers\.\d+\.((self|cross)_attn\.{_ATTENTION}|{_REST_OF_LAYER})',
        rf'decode_head\.transformer_decoder\.post_norm\.{_PARAM}',
        r'decode_head\.(query_embed|query_feat|level_embed)\.weight',
        rf'decode_head\.(cls_embed|mask_embed\.\d)\.{_PARAM}',
    ],
}

# Entries that are recognised and left out, and why.
LEFT_OUT = {
    # mmcv 1 saves buffers that are registered as not persistent.
    r'backbone\.relative_(pos_index|coords_table)\d': 'tables that are computed here for the size of each image',
    r'data_preprocessor\.(mean|std)': 'set by the config',
    # mmcv 1 saves two sets of weights if an averaging hook runs.
    r'ema_\w+': 'the second set of weights of an averaging hook (EMA); the set that mmdet and mmseg load is kept',
}
EMA_STATE_DICTS = ('ema_state_dict', 'model_ema')


@dataclass
class Conversion:
    """A converted file.

    Attributes:
        framework: 'Mask R-CNN', 'DINO', 'UperNet' or 'Mask2Former'.
        variant: One of TransNeXt's `arch_settings`.
        weights: The weights under the names of this package.
        dataset_meta: Classes and palette where the file has them, in mmengine's form.
        counts: Numbers of entries of the 'backbone', the 'neck' and the 'heads'.
        left_out: Names of the entries that are not in `weights`, by the reason.
    """

    framework: str
    variant: str
    weights: dict[str, Tensor]
    dataset_meta: dict
    counts: dict[str, int]
    left_out: dict[str, list[str]]


def convert(path: str, checkpoint: dict, state_dict: dict[str, Tensor], backbone_type: type[nn.Module]) -> Conversion:
    """Bring the weights of a whole detector or segmentor of the authors' into the names of this package.

    Args:
        path: The file, for messages.
        checkpoint: What is in it.
        state_dict: Its weights, without `module.`.
        backbone_type: Class of the backbone, `TransNeXt`.

    Raises:
        InputError: It is another kind of file, has entries that are not understood, or its backbone is incomplete.
    """
    _refuse_other_kinds(path, state_dict)
    left_out = _entries_without_weights(checkpoint)
    backbone, others = {}, {}
    for name, value in state_dict.items():
        reasons = [reason for pattern, reason in LEFT_OUT.items() if re.fullmatch(pattern, name)]
        if reasons:
            left_out.setdefault(reasons[0], []).append(name)
        elif name.startswith('backbone.'):
            backbone[name.removeprefix('backbone.')] = value
        else:
            others[name] = value

    variant, own, backbone, unknown = _match_variant(backbone_type, backbone)
    framework, heads, unknown_heads = _match_framework(others)
    unknown = [f'backbone.{name}' for name in unknown] + unknown_heads
    if unknown:
        raise InputError(
            f'{path} has {len(unknown)} entries of {len(state_dict)} that are neither of {backbone_type.__name__} '
            f'nor of {", ".join(HEADS)} as mmdet 2 and 3 and mmseg 0 and 1 name them: {first_of(unknown)}'
        )
    check_fit(f'{path} (its backbone taken as {backbone_type.__name__}-{variant.capitalize()})', backbone, own)
    if not heads:
        raise InputError(f'{path} has a backbone and no head: the backbone alone takes it as it is, with init_cfg')
    if len(heads) < len(others):
        raise InputError(f'{path} has entries under their older and their newer name at once')
    num_neck = sum(name.startswith('neck.') for name in heads)
    return Conversion(
        framework,
        variant,
        {**{f'backbone.{name}': value for name, value in backbone.items()}, **heads},
        dataset_meta_of(path, checkpoint),
        dict(backbone=len(backbone), neck=num_neck, heads=len(heads) - num_neck),
        left_out,
    )


def _refuse_other_kinds(path: str, state_dict: dict[str, Tensor]) -> None:
    """Raise an `InputError` for files that need no conversion."""
    if {'backbone.stages.0.patch_embed.proj.weight', 'stages.0.patch_embed.proj.weight'} & state_dict.keys():
        raise InputError(f'{path} has the names of this package already: nothing to convert')
    if 'patch_embed1.proj.weight' in state_dict:
        raise InputError(
            f'{path} is a backbone alone, such as the ImageNet release: nothing to convert, '
            f"init_cfg=dict(type='Pretrained', checkpoint='{path}') of the backbone takes it as it is"
        )


def _entries_without_weights(checkpoint: dict) -> dict[str, list[str]]:
    """Names of the entries that are not weights, by the reason why they are left out."""
    key = find_weights_key(checkpoint)
    meta = checkpoint.get('meta') if isinstance(checkpoint.get('meta'), dict) else {}
    beside = [
        name for name, value in checkpoint.items() if name not in (key, 'meta') and not isinstance(value, Tensor)
    ]
    if key:
        beside += [f'{key}.{name}' for name, value in checkpoint[key].items() if not isinstance(value, Tensor)]
    left_out = {
        LEFT_OUT[r'ema_\w+']: [name for name in beside if name in EMA_STATE_DICTS],
        'the state of the training, not of the model': [name for name in beside if name not in EMA_STATE_DICTS]
        + [f'meta.{name}' for name in meta if name not in ('CLASSES', 'PALETTE', 'dataset_meta')],
    }
    return {reason: names for reason, names in left_out.items() if names}


def _match_variant(
    backbone_type: type[nn.Module], state_dict: dict[str, Tensor]
) -> tuple[str, dict[str, Tensor], dict[str, Tensor], list[str]]:
    """Return the variant that fits best: its name, its own state dict, the weights under its names, unknown names."""
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


def _match_framework(state_dict: dict[str, Tensor]) -> tuple[str, dict[str, Tensor], list[str]]:
    """The framework that has most of the names: its name, the weights under today's names, unknown names."""
    names = {name: functools.reduce(lambda n, rule: re.sub(*rule, n), RENAMED_HEADS, name) for name in state_dict}

    def unknown_to(framework: str) -> list[str]:
        pattern = re.compile('|'.join(HEADS[framework]))
        return [name for name, new in names.items() if not pattern.fullmatch(new)]

    framework = min(HEADS, key=lambda framework: len(unknown_to(framework)))
    return framework, {names[name]: value for name, value in state_dict.items()}, unknown_to(framework)
