"""Every config trains, is tested, and comes back from its checkpoint."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from .running import ROOT, metrics_of_test, run, scalars

# Each system and each framework; `make test-all` runs the rest.
REPRESENTATIVES = (
    'transnext/mask_rcnn_micro_coco',
    'transnext/dino_4scale_micro_coco',
    'transnext/mask2former_micro_ade20k',
    'convit/mask_rcnn_tiny_coco',
    'pervit/upernet_tiny_ade20k',
    'gab/mask_rcnn_swin_small_coco',
    'vars/mask2former_rvt_tiny_vars_sd_ade20k',
)
CONFIGS = sorted(
    f'{path.parent.name}/{path.stem}'
    for path in (ROOT / 'configs').glob('[!_]*/*.py')
    if path.parent.name != 'deploy'
)


@pytest.mark.parametrize(
    'name',
    [pytest.param(name, marks=() if name in REPRESENTATIVES else pytest.mark.every_config) for name in CONFIGS],
)
def test_every_config_learns_and_comes_back(name: str, workplace: Path) -> None:
    """A few steps on two pictures; what is saved gives the same metric again."""
    config, work_dir = f'configs/{name}.py', workplace / name
    # DINO's loss, over seven decodings of noisy boxes, falls later than the others': more steps, a shorter warm-up.
    iterations, warmup = (40, 3) if 'dino' in name else (14, 20)
    # So few steps may leave every score of a detector below its threshold, and the metric empty.
    threshold = ['model.test_cfg.rcnn.score_thr=0.0'] if 'mask_rcnn' in name else []
    process = run(
        workplace, 'train.py', config, '--mini', '--work-dir', name,
        '--cfg-options', f'train_cfg.max_iters={iterations}', 'default_hooks.logger.interval=1',
        f'param_scheduler.0.end={warmup}', f'param_scheduler.1.begin={warmup}',
        'train_dataloader.dataset.indices=2', 'val_dataloader.dataset.indices=4',
        'default_hooks.checkpoint.save_optimizer=False', 'default_hooks.checkpoint.save_best=None',
        *threshold,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    losses = [line['loss'] for line in scalars(work_dir) if 'loss' in line]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < 0.95 * np.mean(losses[:3])

    process = run(
        workplace, 'test.py', config, f'{name}/iter_{iterations}.pth', '--mini', '--work-dir', f'{name}/tested',
        '--cfg-options', 'test_dataloader.dataset.indices=4', *threshold,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    (validated,) = [line for line in scalars(work_dir) if 'loss' not in line]
    tested = metrics_of_test(work_dir / 'tested')
    names = [metric for metric in tested if 'time' not in metric]
    assert names
    assert {metric: tested[metric] for metric in names} == {metric: validated[metric] for metric in names}
    shutil.rmtree(work_dir)
