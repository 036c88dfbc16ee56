"""Whole classifiers: the authors' files in mmpretrain's `ImageClassifier`, and their backbones in dense models."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner.checkpoint import load_checkpoint

from bioattn_mm.errors import InputError
from bioattn_mm.systems.timm_models.models import CLASSIFIER_SETTINGS
from tests import parity

from .classifiers import ARCH, NAMES, classifier, released_file, small

RVT_TINY, SOFTMAX = dict(type='VARS', arch='rvt-tiny', out_type='avg_featmap'), dict(attention='softmax')
# Of each vector: the backbone that takes the released file, and timm's model and its arguments.
RELEASED = {
    'transnext_micro_224x224': (dict(type='TransNeXt', arch='micro'), 'transnext_micro', {}),
    'transnext_micro_AAAA_256x256': (dict(type='TransNeXt', arch='micro-aaaa'), 'transnext_micro_aaaa', {}),
    'convit_tiny_224x224': (dict(type='ConViT', arch='tiny', out_type='cls_token'), 'convit_tiny_bioattn', {}),
    'pervit_tiny_224x224': (dict(type='PerViT', arch='tiny'), 'pervit_tiny', {}),
    'vars_rvt_tiny_self-att_224x224': (RVT_TINY | SOFTMAX, 'vars_s_rvt_tiny', SOFTMAX),
    'vars_rvt_tiny_vars_d_224x224': (dict(RVT_TINY, attention='vars_d', num_steps=5), 'vars_d_rvt_tiny', {}),
}


@pytest.fixture(autouse=True)
def scope() -> Iterator[None]:
    """mmpretrain's parts of a classifier are looked up in mmpretrain, whatever ran before."""
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        yield


@pytest.mark.parametrize('host', ['mmpretrain', 'timm'])
@pytest.mark.parametrize('name', RELEASED)
@torch.no_grad()
def test_logits_are_the_recorded_ones(name: str, host: str, tmp_path: Path, lines: list[str]) -> None:
    backbone, timm_name, of_timm = RELEASED[name]
    path = tmp_path / 'released.pth'
    weights = released_file(path, name.rpartition('_')[0])
    if host == 'timm':
        model = timm.create_model(timm_name, **of_timm, checkpoint_path=str(path))
    else:
        init_cfg = dict(type='Pretrained', checkpoint=str(path))
        model = classifier(backbone, channels=weights['head.weight'].shape[1], init_cfg=init_cfg)
        model.init_weights()
    vector = parity.read_json(f'logits_{name}')
    logits = model.eval()(parity.image(*vector['image'][::2], vector['image'][3]))
    recorded = np.load(parity.FOLDER / f'logits_{name}.npz')['logits']
    assert parity.relative_error(logits.numpy(), recorded) < 1e-4
    if host == 'mmpretrain':
        unused = ', '.join(name for name in weights if name.endswith('.attn.L'))  # computed from other weights
        assert lines[0].endswith(f'not used: {unused}' if unused else 'entries used, which are all of the file')


@pytest.mark.parametrize('name', NAMES)
@torch.no_grad()
def test_timm_and_dense_models_take_a_checkpoint_of_ours(name: str, tmp_path: Path, lines: list[str]) -> None:
    settings = {} if name == 'GABSwin' else CLASSIFIER_SETTINGS[name]  # which pads small maps here
    settings = dict(type=name, arch=ARCH[name], **settings)
    host, path = classifier(settings, small(name).num_features, 10).eval(), str(tmp_path / 'epoch_300.pth')
    own = host.backbone.state_dict()
    torch.save({'state_dict': host.state_dict(), 'meta': {'epoch': 300}}, path)
    model = small(name, num_classes=10, checkpoint_path=path).eval()
    image = torch.randn(2, 3, 64, 96)
    torch.testing.assert_close(model(image), host(image), rtol=0, atol=1e-6)
    host.load_state_dict(model.state_dict())  # and the other way round
    backbones = [small(name, features_only=True, out_indices=2, checkpoint_path=path).backbone]
    for prefix in ({}, dict(prefix='backbone.'), dict(prefix='backbone')):
        options = dict(out_indices=(-1,), init_cfg=dict(type='Pretrained', checkpoint=path, **prefix))
        backbones.append(MODELS.build(dict(type=f'bioattn_mm.{name}', arch=ARCH[name], **options)))
        backbones[-1].init_weights()
        of_mean = 'fc_norm.weight, fc_norm.bias, ' if name in ('GABViT', 'VARS') else ''
        number = len(backbones[-1].state_dict())
        assert lines[-1].endswith(f'; {number} entries used, not used: {of_mean}head.* (2 entries)')
    for backbone in backbones:
        for parameter, value in backbone.state_dict().items():
            assert parameter not in own or torch.equal(value, own[parameter]), parameter


def test_head_of_other_classes_stays_at_its_initial_values(tmp_path: Path) -> None:
    weights = released_file(tmp_path / 'released.pth', 'convit_tiny')
    model = classifier(RELEASED['convit_tiny_224x224'][0], 192, classes=10)
    before = model.head.fc.weight.detach().clone()
    load_checkpoint(model, str(tmp_path / 'released.pth'))
    torch.testing.assert_close(model.head.fc.weight.detach(), before, rtol=0, atol=0)
    torch.testing.assert_close(model.backbone.norm.weight.detach(), weights['norm.weight'], rtol=0, atol=0)


@pytest.mark.parametrize(
    ('manifest', 'backbone', 'message'),
    [
        ('pervit_tiny', dict(type='PerViT', arch='small'), 'is not a checkpoint of this model; .* of another'),
        (
            'vars_rvt_tiny_vars_d',
            dict(type='VARS', arch='rvt-tiny', attention='vars_d'),
            "normalises the mean of the tokens: set out_type of the backbone to 'avg_featmap'",
        ),
        (None, dict(type='PerViT', arch='tiny'), 'has a backbone and no classifier, whose name would be head'),
    ],
)
def test_files_that_do_not_fit(manifest: str | None, backbone: dict, message: str, tmp_path: Path) -> None:
    model, path = classifier(backbone, 384, classes=10), tmp_path / 'file.pth'
    if manifest is None:
        torch.save(model.backbone.state_dict(), path)
    else:
        released_file(path, manifest, classes=10)
    with pytest.raises(InputError, match=message):
        load_checkpoint(model, str(path))
