"""The models that `timm.create_model` knows, with what timm keeps of each: weights, input size, normalisation.

This is imported when timm is (see `hook`), and imports the backbones themselves when one is created. ConViT's
names end in `_bioattn`, because `convit_tiny`, `convit_small` and `convit_base` are timm's own ConViT.
"""

import warnings
from collections.abc import Callable

from timm.data.constants import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.models import generate_default_cfgs, is_model, register_model
from torch import nn

# The variants of each class, and the form of the names.
VARIANTS = {
    'transnext_{}': ('TransNeXt', ('micro', 'micro-aaaa', 'tiny', 'small', 'base')),
    'convit_{}_bioattn': ('ConViT', ('tiny', 'tiny-plus', 'small', 'small-plus', 'base', 'base-plus')),
    'pervit_{}': ('PerViT', ('tiny', 'small', 'medium')),
    'gab_vit_{}': ('GABViT', ('small', 'medium', 'base')),
    'gab_swin_{}': ('GABSwin', ('tiny', 'small', 'base')),
}
# Class and arguments of each model.
MODELS: dict[str, tuple[str, dict]] = {
    form.format(arch.replace('-', '_')): (backbone, dict(arch=arch))
    for form, (backbone, archs) in VARIANTS.items()
    for arch in archs
} | {
    f'{attention}_{arch.replace("-", "_")}': ('VARS', dict(arch=arch, attention=attention))
    for arch in ('rvt-tiny', 'rvt-small', 'deit-tiny', 'gfnet-tiny')
    for attention in ('vars_s', 'vars_d', 'vars_sd')
}
for _name in ('vars_d_rvt_tiny', 'vars_sd_rvt_tiny'):
    MODELS[_name][1]['num_steps'] = 5

# What timm keeps of all models of a class. timm's defaults are ImageNet's mean and standard deviation.
_PLAIN = dict(pool_size=(14, 14))
_PYRAMID = dict(pool_size=(7, 7))
OF_CLASS = dict(
    TransNeXt=dict(_PYRAMID, first_conv='backbone.stages.0.patch_embed.proj', paper_ids='arXiv:2311.17132'),
    ConViT=dict(_PLAIN, first_conv='backbone.patch_embed.proj', paper_ids='arXiv:2103.10697'),
    PerViT=dict(_PLAIN, first_conv='backbone.stem.0.0', paper_ids='arXiv:2206.06801'),
    # The two hosts are normalised as their weights want it. Swin's classifier needs whole windows in its last stage.
    GABViT=dict(
        _PLAIN,
        first_conv='backbone.patch_embed.proj',
        paper_ids='arXiv:2305.04722',
        crop_pct=0.9,
        mean=IMAGENET_INCEPTION_MEAN,
        std=IMAGENET_INCEPTION_STD,
    ),
    GABSwin=dict(
        _PYRAMID,
        first_conv='backbone.patch_embed.projection',
        paper_ids='arXiv:2305.04722',
        crop_pct=0.9,
        min_input_size=(3, 193, 193),
    ),
    VARS=dict(_PLAIN, first_conv='backbone.stem.0', paper_ids='arXiv:2204.10962'),
)


def _transnext(variant: str, **values: object) -> dict:
    """The authors' file of this name."""
    repository = f'DaiShiResearch/transnext-{variant}'
    return dict(hf_hub_id=repository, hf_hub_filename=f'transnext_{variant.replace("-", "_")}.pth', **values)


# The authors' ImageNet-1k classifiers, by the name of the model and a tag. What is fine-tuned at 384 pixels is tested
# on images squeezed to a square.
_AT_384 = dict(input_size=(3, 384, 384), pool_size=(12, 12), crop_pct=1.0, crop_mode='squash')
WEIGHTS = {
    'transnext_micro.in1k': _transnext('micro-224-1k'),
    'transnext_micro_aaaa.in1k': _transnext('micro-AAAA-256-1k', input_size=(3, 256, 256), pool_size=(8, 8)),
    'transnext_tiny.in1k': _transnext('tiny-224-1k'),
    'transnext_small.in1k': _transnext('small-224-1k'),
    'transnext_small.ft_in1k_384': _transnext('small-384-1k-ft-1k', **_AT_384),
    'transnext_base.in1k': _transnext('base-224-1k'),
    'transnext_base.ft_in1k_384': _transnext('base-384-1k-ft-1k', **_AT_384),
    'convit_tiny_bioattn.fb_in1k': dict(url='https://dl.fbaipublicfiles.com/convit/convit_tiny.pth'),
    'convit_small_bioattn.fb_in1k': dict(url='https://dl.fbaipublicfiles.com/convit/convit_small.pth'),
    'convit_base_bioattn.fb_in1k': dict(url='https://dl.fbaipublicfiles.com/convit/convit_base.pth'),
}


def _pretrained_cfgs() -> dict[str, dict]:
    """What timm keeps of each model and each file of weights."""
    cfgs = {}
    for name, (backbone, settings) in MODELS.items():
        common = dict(classifier='head.fc', interpolation='bicubic', **OF_CLASS[backbone])
        if settings['arch'] == 'rvt-tiny':  # its last blocks have stride 32
            common.update(_PYRAMID)
        files = {tagged: values for tagged, values in WEIGHTS.items() if tagged.split('.')[0] == name}
        cfgs.update({tagged: {**common, **values} for tagged, values in (files or {name: {}}).items()})
    return cfgs


def _entrypoint(name: str, backbone: str, settings: dict) -> Callable[..., nn.Module]:
    """The function that `timm.create_model` calls for a name."""

    def create(pretrained: bool = False, **kwargs) -> nn.Module:
        from .models import create_model

        return create_model(name, backbone, settings, pretrained, **kwargs)

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f'{backbone} with {", ".join(f"{key}={value!r}" for key, value in settings.items())}.'
    return create


# `register_model` looks them up under this name.
default_cfgs = generate_default_cfgs(_pretrained_cfgs())

for _name, (_backbone, _settings) in MODELS.items():
    if is_model(_name):  # of a later timm
        warnings.warn(f'timm has a model {_name} of its own, and keeps it', RuntimeWarning, stacklevel=2)
    else:
        register_model(_entrypoint(_name, _backbone, _settings))
