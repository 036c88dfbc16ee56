"""Short trainings of small models by tools/train.py, whose losses are compared."""

from pathlib import Path

from ..conftest import ROOT
from ..tools.running import InProcess, scalars
from ..tools.small_images import NO_WORKERS, small_training

CONFIGS = dict(upernet='tests/tools/upernet_small.py', mask_rcnn='tests/tools/mask_rcnn_small.py')
STEPS = 6


def train(tool: InProcess, workplace: Path, name: str, work_dir: str, *args: str) -> list[float]:
    """The losses of a short miniature run, step by step."""
    config = ROOT / CONFIGS[name]
    tool(
        workplace, 'train.py', config, '--mini', '--work-dir', work_dir, *args, '--cfg-options',
        f'train_cfg.max_iters={STEPS}', 'train_cfg.val_begin=1000', 'default_hooks.logger.interval=1',
        f'default_hooks.checkpoint.interval={STEPS}', 'default_hooks.checkpoint.save_best=None',
        # The warm-up would hardly change the weights.
        'param_scheduler.0.end=1', *NO_WORKERS, *small_training(str(config)),
    )  # fmt: skip
    return [line['loss'] for line in scalars(workplace / work_dir) if 'loss' in line]
