"""Short trainings of a small segmentor, to be run in processes of their own, and what may happen to them."""

import multiprocessing
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import mmdet.models  # noqa: F401  what a process has before it is forked
import mmseg.models  # noqa: F401
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from bioattn_mm.checkpoints import mmengine_reads_all, read_checkpoint
from bioattn_mm.training.checkpoints import latest_checkpoint
from bioattn_mm.training.config.config_text import configs_formatted_once
from bioattn_mm.training.config.distributed import prepare_process, set_strategy
from bioattn_mm.training.config.mini import make_mini
from bioattn_mm.training.runner import build_runner

ROOT = Path(__file__).parents[2]
IMAGES = 4


@HOOKS.register_module()
class SignalHook(Hook):
    """Sends the process a signal after an iteration; SIGXFSZ comes in the middle of writing the next checkpoint."""

    priority = 'HIGHEST'

    def __init__(self, name: str, after: int, rank: int = 0) -> None:
        self.signal, self.after, self.rank = signal.Signals[name], after, rank

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if runner.iter + 1 != self.after or runner.rank != self.rank:
            return
        if self.signal == signal.SIGXFSZ:
            limit_file_size(next(Path().glob('iter_*.pth')).stat().st_size // 2, signal.SIG_DFL)
        else:
            # All processes of the run get it, as from a job scheduler.
            workers = [str(child.pid) for child in multiprocessing.active_children()]
            subprocess.run(['kill', f'-{self.signal.value}', str(os.getpid()), *workers], check=True)
            time.sleep(0.1)


def limit_file_size(num_bytes: int, handler: signal.Handlers) -> None:
    """Let no file of this process grow beyond a size.

    Args:
        num_bytes: The size.
        handler: SIG_IGN to get an `OSError`, as on a full disk; SIG_DFL to be killed by SIGXFSZ.
    """
    signal.signal(signal.SIGXFSZ, handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def new_folder(workplace: Path, name: str) -> Path:
    """A folder for a run, with the data of the workplace."""
    folder = workplace / name
    folder.mkdir()
    (folder / 'data').symlink_to(workplace / 'data')
    return folder


def small_config(iterations: int) -> Config:
    """A miniature run of UperNet, with a checkpoint after the last iteration and no validation."""
    config = make_mini(Config.fromfile(ROOT / 'tests/tools/upernet_small.py'))
    # Bilinear resizing of the bias would add rounding to what is compared.
    config.model.backbone.bias_mode = 'extrapolate'
    config.work_dir = '.'
    config.train_cfg.update(max_iters=iterations, val_begin=1000)
    config.default_hooks.checkpoint.update(interval=iterations, save_best=None)
    config.default_hooks.logger.interval = 1
    config.train_dataloader.dataset.indices = IMAGES
    config.train_dataloader.update(num_workers=1)
    return config


def make_comparable(config: Config, world_size: int, accumulative_counts: int = 1) -> None:
    """The same step, whatever the number of processes: all four images, nothing random, nothing of a batch."""
    batch_size = IMAGES // world_size // accumulative_counts
    config.train_dataloader.update(batch_size=batch_size, num_workers=0, persistent_workers=False)
    config.train_dataloader.sampler.shuffle = False
    dataset, size = config.train_dataloader.dataset, (96, 64)
    load, pack = dataset.pipeline[:2], dataset.pipeline[-1]
    dataset.pipeline = [*load, dict(type='Resize', scale=size, keep_ratio=False), pack]
    for head in (config.model.decode_head, config.model.auxiliary_head):
        head.update(norm_cfg=dict(type='GN', num_groups=4), dropout_ratio=0)
    config.model.data_preprocessor.size = size[::-1]
    # Adam divides by the gradient's size, and makes a step of rounding errors where it is zero.
    config.optim_wrapper.optimizer = dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.05)
    config.optim_wrapper.pop('clip_grad', None)
    config.optim_wrapper.accumulative_counts = accumulative_counts
    config.param_scheduler = []


def train(config: Config, launcher: str = 'none', strategy: str | None = None) -> None:
    """What tools/train.py does with a config."""
    config.launcher = launcher
    prepare_process(config, launcher)
    if strategy:
        set_strategy(config, ROOT / f'configs/_base_/strategies/{strategy}.py')
    with configs_formatted_once(), mmengine_reads_all():
        build_runner(config).train()


def resume(config: Config, launcher: str = 'none', strategy: str | None = None) -> None:
    """Go on in the same folder."""
    config.load_from = latest_checkpoint('.')
    config.resume = True
    train(config, launcher, strategy)


def largest_difference(first: Path, second: Path, key: str = 'state_dict') -> float:
    """Between the weights of two checkpoints."""
    a, b = (read_checkpoint(str(path))[key] for path in (first, second))
    assert a.keys() == b.keys()
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a)
