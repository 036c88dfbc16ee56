"""How a training computes: its losses beside those of float32 without compilation."""

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from bioattn_mm.training.config.computation import set_computation

from ...conftest import ROOT
from ...needs import needs
from ...tools.running import InProcess, scalars
from ...tools.small_images import NO_WORKERS, small_training
from ..graphs_on_cpu import graphs_on_cpu  # noqa: F401

STEPS = 6


def train(tool: InProcess, workplace: Path, name: str, work_dir: str, *args: str) -> list[float]:
    """The losses of a short miniature run, step by step."""
    config = ROOT / f'tests/tools/{name}_small.py'
    tool(
        workplace, 'train.py', config, '--mini', '--work-dir', work_dir, *args, '--cfg-options',
        f'train_cfg.max_iters={STEPS}', 'train_cfg.val_begin=1000', 'default_hooks.logger.interval=1',
        f'default_hooks.checkpoint.interval={STEPS}', 'default_hooks.checkpoint.save_best=None',
        # The warm-up would hardly change the weights.
        'param_scheduler.0.end=1', *NO_WORKERS, *small_training(str(config)),
    )  # fmt: skip
    return [line['loss'] for line in scalars(workplace / work_dir) if 'loss' in line]


def log_of(work_dir: Path) -> str:
    (path,) = work_dir.rglob('*.log')
    return path.read_text()


@pytest.mark.usefixtures('bfloat16_anywhere')
@pytest.mark.parametrize('name', ['upernet', pytest.param('mask_rcnn', marks=pytest.mark.slow)])
def test_mixed_precision(name: str, workplace: Path, tool: InProcess) -> None:
    expected = train(tool, workplace, name, f'{name}_float32')
    losses = train(tool, workplace, name, f'{name}_mixed', '--amp', 'bfloat16')
    # bfloat16 rounds to 1/256, and each step goes on from weights that differ already.
    assert losses == pytest.approx(expected, rel=0.03) and losses != expected
    weights = torch.load(workplace / f'{name}_mixed/iter_{STEPS}.pth', weights_only=False)['state_dict']
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float32}


@pytest.mark.every_compilation
@needs('compiler')
def test_compilation(workplace: Path, tool: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    # Its own random numbers would drop other paths.
    monkeypatch.setattr('torch._inductor.config.fallback_random', True)
    expected = train(tool, workplace, 'upernet', 'not_compiled')
    assert train(tool, workplace, 'upernet', 'compiled', '--compile') == pytest.approx(expected, rel=1e-3)
    log = log_of(workplace / 'compiled')
    assert 'compiled with inductor at the first step' in log and 'runs without being compiled' not in log


@pytest.mark.usefixtures('graphs_on_cpu')
def test_cuda_graphs(workplace: Path, tool: InProcess) -> None:
    expected = train(tool, workplace, 'mask_rcnn', 'without_graphs')
    losses = train(tool, workplace, 'mask_rcnn', 'graphs', '--cuda-graphs', '1')
    assert losses == pytest.approx(expected, rel=1e-4)
    log = log_of(workplace / 'graphs')
    assert 'CUDA graph 1 of training: images of (2, 3, ' in log
    assert re.search(r'CUDA graphs ran [1-9]\d* of \d+ passes', log)
    output = tool(
        workplace, 'test.py', ROOT / 'tests/tools/mask_rcnn_small.py', f'graphs/iter_{STEPS}.pth', '--mini',
        '--cuda-graphs', '--cfg-options', 'test_dataloader.dataset.indices=4', *NO_WORKERS,
    )  # fmt: skip
    assert 'CUDA graph 1 of evaluation: images of (1, 3, ' in output


@pytest.mark.parametrize(('scope', 'dynamic'), [('mmdet', True), ('mmseg', None)])
def test_images_of_detectors_have_many_sizes(scope: str, dynamic: bool | None) -> None:
    config = Config(dict(default_scope=scope, optim_wrapper={}))
    set_computation(config, compile='inductor')
    assert config.custom_hooks == [dict(type='bioattn_mm.CompileHook', backend='inductor', dynamic=dynamic)]
