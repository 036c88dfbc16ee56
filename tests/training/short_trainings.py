"""Short trainings of small models by tools/train.py, whose losses are compared."""

import shutil
from pathlib import Path

from ..conftest import ROOT
from ..tools.running import InProcess, scalars
from ..tools.small_images import small_training

CONFIGS = dict(upernet='tests/tools/upernet_small.py', mask_rcnn='tests/tools/mask_rcnn_small.py')
STEPS = 6


def train(tool: InProcess, workplace: Path, name: str, work_dir: str, *args: str) -> list[dict]:
    """What a short miniature run logs, step by step."""
    config = ROOT / CONFIGS[name]
    tool(
        workplace, 'train.py', config, '--mini', '--work-dir', work_dir, *args, '--cfg-options',
        f'train_cfg.max_iters={STEPS}', 'train_cfg.val_begin=1000', 'default_hooks.logger.interval=1',
        f'default_hooks.checkpoint.interval={STEPS // 2}', 'default_hooks.checkpoint.max_keep_ckpts=2',
        'default_hooks.checkpoint.save_best=None',
        # The warm-up would hardly change the weights.
        'param_scheduler.0.end=1', 'train_dataloader.num_workers=0', 'train_dataloader.persistent_workers=False',
        *small_training(str(config)),
    )  # fmt: skip
    return [line for line in scalars(workplace / work_dir) if 'loss' in line]


def resumed(tool: InProcess, workplace: Path, name: str, work_dir: str, *args: str) -> list[float]:
    """The losses of the second half of a short run, from its checkpoint in the middle."""
    folder = workplace / f'{work_dir}_resumed'
    folder.mkdir()
    checkpoint = shutil.copy(workplace / work_dir / f'iter_{STEPS // 2}.pth', folder)
    lines = train(tool, workplace, name, folder.name, *args, '--resume', str(checkpoint))
    return [line['loss'] for line in lines]
