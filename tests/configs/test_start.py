"""Every attention of every config at the start of a training: its weights, codes and gradients on a photograph."""

import json

import pytest
import torch
from torch import Tensor

from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.registry import MODELS
from bioattn_mm.systems.common.attention_maps import whole_attention
from bioattn_mm.systems.transnext.ablations import SpatialReductionAttention
from tests.systems.real_picture import real_picture

from .reading import ABLATIONS, CONFIGS, parse

# These arguments are no matter of the attention. Blocks after the last output are not built, where there is a choice.
ELSEWHERE = ('init_cfg', 'drop_path_rate', 'out_indices', 'out_type', 'frozen_stages', 'with_cp', 'img_size', 'arch')
# The instance norms of Phi_p subtract its biases, and softmax one that all keys have.
WITHOUT_EFFECT = ('conv1.bias', 'conv2.bias', 'convs.0.bias', 'convs.1.bias', 'position_bias.fc2.bias')


def smaller(backbone: dict) -> dict:
    """The settings of a backbone with a few narrow blocks, whose attention is that of the config."""
    kind = MODELS.get(backbone['type'])
    default = 'rvt-tiny' if kind.__name__ == 'VARS' else None
    arch = kind.parse_arch(backbone.get('arch', default))
    heads = arch['num_heads']
    if 'num_layers' in arch:  # ConViT and GABViT
        arch.update(num_layers=2, num_heads=4, embed_dims=64)
    elif 'stem_channels' in arch:  # PerViT
        arch.update(depths=(1, 1, 1, 1), num_heads=4, embed_dims=(32, 32, 64, 64), stem_channels=(8, 8, 16))
    elif 'block' in arch:  # VARS
        arch.update(depths=[2, 1][: len(heads)], num_heads=[4, 8][: len(heads)], embed_dims=[64, 128][: len(heads)])
    else:  # TransNeXt and GABSwin
        arch.update(depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8))
        arch.update(embed_dims=24 if isinstance(arch['embed_dims'], int) else (24, 48, 96, 192))
    settings = {name: value for name, value in backbone.items() if name not in ELSEWHERE}
    if kind.__name__ == 'ConViT':  # with gates in the first block, if in any
        settings['local_up_to_layer'] = min(settings.get('local_up_to_layer', 1), 1)
    if 'depths' not in arch or 'stem_channels' in arch or 'block' in arch:
        settings['out_indices'] = (sum(arch.get('depths', [2])) - 1,)
    if 'pad_small_map' in settings:  # the picture is small
        settings['pad_small_map'] = True
    if isinstance(settings.get('token_mixers'), list):
        settings['token_mixers'] = settings['token_mixers'][:4]
    return dict(settings, arch=arch)


def cases(system: str) -> dict[str, dict]:
    """The different ones, by the first config that has them; those of other libraries have no attention of ours."""
    found = {}
    for path in [*CONFIGS, *ABLATIONS]:
        if path.parts[1] != system:
            continue
        backbone = parse(path).to_dict()['model']['backbone']
        if str(backbone['type']).startswith('bioattn_mm.'):
            settings = smaller(backbone)
            found.setdefault(json.dumps(settings, sort_keys=True), (path.stem, settings))
    return dict(found.values())


def check(name: str, value: Tensor, may_be_constant: bool) -> None:
    """Neither NaN nor all zero nor all the same, which rounding to bfloat16 may make them."""
    assert value.isfinite().all(), f'{name} is not finite'
    assert value.any(), f'{name} is zero'
    assert may_be_constant or value.min() < value.max(), f'{name} is constant'


@pytest.mark.parametrize('system', sorted({path.parts[1] for path in CONFIGS} - {'baselines'}))
def test_attention_starts(system: str) -> None:
    for case, settings in cases(system).items():
        torch.manual_seed(0)
        check_start(case, settings)


def check_start(case: str, settings: dict) -> None:
    backbone = MODELS.build(settings)
    without_effect = WITHOUT_EFFECT
    if settings.get('amplitude') == 0:  # GAB's baselines stay without Gaussians
        without_effect += ('gaussian.amplitude', 'gaussian.sigma')
    images = real_picture(96)
    for is_rounded, is_training in ((False, True), (False, False), (True, True)):
        backbone.train(is_training).zero_grad()
        where = f'{case}, {"bfloat16" if is_rounded else "float32"}, {"train" if is_training else "eval"}: '
        with torch.autocast('cpu', torch.bfloat16, enabled=is_rounded):
            outputs = backbone(images)
            for recording in record_attention(backbone, images):
                if isinstance(recording.layer, SpatialReductionAttention):  # it has no maps
                    continue
                for part in whole_attention(recording.maps(torch.tensor([0, 5]))):
                    check(f'{where}weights of {recording.name}', part.weights, is_rounded)
                if hasattr(recording.layer, 'recurrent_states'):
                    codes = recording.layer.recurrent_states(*recording.inputs)[1][-1]
                    check(f'{where}codes of {recording.name}', codes, is_rounded)
        sum((output.float() * torch.randn(output.shape)).mean() for output in outputs).backward()
        for name, parameter in backbone.named_parameters():
            if parameter.requires_grad and '.attn.' in name and not name.endswith(without_effect):
                # The channels of Phi_p start alike (PerViT, eq. 9).
                may_be_constant = parameter.numel() == 1 or '.position.' in name
                check(f'{where}gradient of {name}', parameter.grad, may_be_constant)
