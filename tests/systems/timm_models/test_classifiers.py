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
from bioattn_mm.systems.convit import ConViT
from tests import parity

from .classifiers import ARCH, NAMES, RELEASED, classifier, released_file, small_classifier

every_system = pytest.mark.parametrize('name', NAMES)


@pytest.fixture(autouse=True)
def scope() -> Iterator[None]:
    """mmpretrain's parts of a classifier are looked up in mmpretrain, whatever ran before."""
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        yield


@pytest.mark.parametrize('host', ['mmpretrain', 'timm'])
@pytest.mark.parametrize('name', RELEASED)
@torch.no_grad()
def test_logits_are_the_recorded_ones(name: str, host: str, tmp_path: Path, lines: list[str]) -> None:
    manifest, backbone, of_timm = RELEASED[name]
    path = tmp_path / 'released.pth'
    weights = released_file(path, manifest)
    if host == 'timm':
        model = timm.create_model(**of_timm, checkpoint_path=str(path))
    else:
        init_cfg = dict(type='Pretrained', checkpoint=str(path))
        model = classifier(backbone, channels=weights['head.weight'].shape[1], init_cfg=init_cfg)
        model.init_weights()
    vector = parity.read_vector(name)
    logits = model.eval()(parity.image(*vector['image'][::2], vector['image'][3]))
    recorded = np.load(parity.FOLDER / f'{name}.npz')['logits']
    assert parity.relative_error(logits.numpy(), recorded) < 1e-4
    if host == 'mmpretrain':
        unused = ', '.join(name for name in weights if name.endswith('.attn.L'))  # computed from other weights
        assert lines[0].endswith(f'not used: {unused}' if unused else 'entries used, which are all of the file')


@torch.no_grad()
def test_tokens_of_convit_at_any_size() -> None:
    token, mean, maps = (
        ConViT(ARCH['ConViT'], out_indices=(10, 11), out_type=out_type).eval()
        for out_type in ('cls_token', 'avg_featmap', 'featmap')
    )
    for backbone in (mean, maps):
        backbone.load_state_dict(token.state_dict())
    image = torch.randn(2, 3, 90, 33)
    for class_token, pooled, feature in zip(token(image), mean(image), maps(image), strict=True):
        assert class_token.shape == pooled.shape == (2, 8)
        assert feature.shape == (2, 8, 6, 3)
        torch.testing.assert_close(pooled, feature.mean((2, 3)))
        assert not torch.allclose(class_token, pooled, atol=1e-3)


@every_system
@pytest.mark.parametrize('prefix', [{}, dict(prefix='backbone.'), dict(prefix='backbone')], ids=str)
def test_backbones_of_dense_models_take_a_checkpoint_of_ours(
    name: str, prefix: dict, tmp_path: Path, lines: list[str]
) -> None:
    model = small_classifier(name)
    torch.save({'state_dict': model.state_dict(), 'meta': {'epoch': 300}}, tmp_path / 'epoch_300.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'epoch_300.pth'), **prefix)
    backbone = MODELS.build(dict(type=f'bioattn_mm.{name}', arch=ARCH[name], out_indices=(-1,), init_cfg=init_cfg))
    backbone.init_weights()
    own = model.backbone.state_dict()
    for parameter, value in backbone.state_dict().items():
        torch.testing.assert_close(value, own[parameter], rtol=0, atol=0)
    of_mean = 'fc_norm.weight, fc_norm.bias, ' if name in ('GABViT', 'VARS') else ''
    assert lines[0].endswith(f'; {len(backbone.state_dict())} entries used, not used: {of_mean}head.* (2 entries)')


def test_head_of_other_classes_stays_at_its_initial_values(tmp_path: Path) -> None:
    weights = released_file(tmp_path / 'released.pth', 'convit_tiny')
    _, backbone, _ = RELEASED['logits_convit_tiny_224x224']
    model = classifier(backbone, 192, classes=10)
    before = model.head.fc.weight.detach().clone()
    load_checkpoint(model, str(tmp_path / 'released.pth'))
    torch.testing.assert_close(model.head.fc.weight.detach(), before, rtol=0, atol=0)
    torch.testing.assert_close(model.backbone.norm.weight.detach(), weights['norm.weight'], rtol=0, atol=0)


@pytest.mark.parametrize(
    ('manifest', 'backbone', 'message'),
    [
        ('pervit_tiny', dict(type='PerViT', arch='small'), 'is not a checkpoint of this model; .* of another'),
        ('convit_tiny', dict(type='PerViT', arch='tiny'), 'is not a checkpoint of this model; .* missing in'),
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
