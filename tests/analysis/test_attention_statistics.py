"""`AttentionStatisticsHook` in short trainings: what it logs, when, and its curves."""

import copy
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.model import BaseModel
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from PIL import Image
from torch import Tensor, nn

from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.analysis.attention_statistics import AttentionStatisticsHook
from bioattn_mm.analysis.locality import measure_model
from bioattn_mm.errors import InputError

from ..tools.running import ROOT, scalars
from .small_backbones import build


class Model(BaseModel):
    """A backbone whose loss is the mean of its outputs."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__(data_preprocessor=dict(type='ImgDataPreprocessor', mean=[120] * 3, std=[60] * 3))
        self.backbone = backbone

    def forward(self, inputs: Tensor, data_samples: None = None, mode: str = 'loss') -> dict[str, Tensor]:
        return dict(loss=sum(output.square().mean() for output in self.backbone(inputs)))


def train(backbone: nn.Module, folder: Path, iterations: int = 3, **options: object) -> tuple[Runner, dict]:
    """Train with a measurement after every second iteration; also return what was logged by key and iteration."""
    images = [dict(inputs=image) for image in torch.randint(0, 255, (8, 3, 48, 64))]
    runner = Runner(
        Model(backbone),
        str(folder),
        train_dataloader=dict(dataset=images, batch_size=2, sampler=dict(type='DefaultSampler', shuffle=True)),
        train_cfg=dict(by_epoch=False, max_iters=iterations),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=10.0)),
        custom_hooks=[dict(type='bioattn_mm.AttentionStatisticsHook', interval=2, **options)],
        default_hooks=dict(logger=dict(type='LoggerHook', interval=1), checkpoint=None),
        experiment_name=folder.name,
        log_level='WARNING',
    )
    runner.train()
    lines = scalars(folder)
    return runner, {key: {line['iter']: line[key] for line in lines if key in line} for key in set().union(*lines)}


def test_gates_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each head, at the start, every second iteration and at the end; beside mmengine's own log."""
    backbone = build('ConViT', local_up_to_layer=4, out_indices=(1, 3))
    nn.init.normal_(backbone.blocks[0].attn.pos_proj.weight)
    first = backbone.blocks[0].attn.gating_param.sigmoid().tolist()
    work_dir = tmp_path / 'run'
    _, curves = train(backbone, work_dir, per_head=True)
    gates = [curves[f'attention/gate/layer0/head{head}'] for head in range(2)]
    last = backbone.blocks[0].attn.gating_param.sigmoid().tolist()
    assert first != last
    for curve, begin, end in zip(gates, first, last):
        assert list(curve) == [0, 2, 3]
        assert curve[0] == pytest.approx(begin) and curve[3] == pytest.approx(end)
    assert list(curves['loss']) == [1, 2, 3]
    names = 'gate nonlocality nonlocality_content nonlocality_position impact_content impact_position'
    assert {key.split('/')[1] for key in curves if key.startswith('attention/')} == set(names.split())
    assert backbone.training

    # A classifier whose layers all have a class token, so that no output and no layer has a grid (ConViT, figure 5).
    deit = build('ConViT', local_up_to_layer=0, out_indices=(1,), out_type='cls_token')
    train(deit, tmp_path / 'deit', per_head=True)
    script = str(ROOT / 'docs/make_attention_curves.py')
    for options in ((), ('--by-layer',)):
        words = (work_dir, tmp_path / 'deit', '--measure', 'nonlocality', *options, '--out', tmp_path / 'drawn')
        monkeypatch.setattr(sys, 'argv', [script, *map(str, words)])
        runpy.run_path(script, run_name='__main__')
        with Image.open(tmp_path / 'drawn/attention_curves.png') as image:
            assert np.asarray(image.convert('L')).std() > 10


def test_means_over_the_heads(tmp_path: Path) -> None:
    """Of the images of the first batch; what is no number is not logged, and does not end the training."""
    backbone = build('PerViT')
    nn.init.constant_(backbone.blocks[1].attn.qkv.weight, float('nan'))
    initial = copy.deepcopy(backbone).eval()
    runner, curves = train(backbone, tmp_path, iterations=1, num_images=1)
    logged = {key.split('/')[1] for key in curves if key.startswith('attention/')}
    assert {'share_central', 'share_far-peripheral', 'impact_position', 'nonlocality'} <= logged
    (hook,) = (hook for hook in runner.hooks if type(hook).__name__ == 'AttentionStatisticsHook')
    assert hook.images.shape == (1, 3, 48, 64)
    rows = measure_model([record_attention(initial, hook.images)], 32)
    wanted = np.mean([row['nonlocality'] for row in rows if row['layer'] == 0])
    assert curves['attention/nonlocality/layer0'][0] == pytest.approx(wanted, rel=1e-4)
    assert 'attention/nonlocality/layer1' not in curves and 'attention/share_central/layer1' in curves


def test_backbone_of_another_library(tmp_path: Path) -> None:
    import mmseg.models  # noqa: F401

    init_default_scope('mmseg')
    swin = MODELS.build(dict(type='SwinTransformer', embed_dims=8, depths=(2, 1, 1, 1), num_heads=(1, 1, 2, 2)))
    _, curves = train(swin, tmp_path, iterations=1)
    assert {key for key in curves if 'nonlocality' in key} == {f'attention/nonlocality/layer{n}' for n in range(5)}


def test_refuses_what_it_cannot_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match='needs a backbone with attention that can be measured: Conv2d has none'):
        train(nn.Conv2d(3, 4, 3), tmp_path / 'convolution')
    with pytest.raises(InputError, match='interval of AttentionStatisticsHook must be at least 1, got 0'):
        AttentionStatisticsHook(interval=0)
    # The main process alone would wait for ever for the parts that the others have.
    monkeypatch.setattr('bioattn_mm.analysis.attention_statistics.FSDPModule', nn.Linear, raising=False)
    with pytest.raises(InputError, match='needs the whole model in a process: leave out FSDP, or the hook'):
        train(build('ConViT'), tmp_path / 'divided')
