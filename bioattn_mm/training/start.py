"""Where a training starts: from the beginning, from weights, or from a checkpoint; and in a folder of its own."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config
from torch import Tensor, nn

from ..checkpoints import check_fit, is_sharded, read_checkpoint, read_state_dict, weights_for, weights_of
from ..checkpoints.training_state import check_training_state
from ..errors import InputError
from .checkpoints import latest_checkpoint
from .config.own_data import check_classes
from .config.pipelines import add_hook, find_dicts

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two trainings out of one work dir
    fcntl = None

# The file in a work dir that a training locks. It is left there, as removing it would let a third process lock
# another file of the same name.
LOCK = '.lock'
# Seconds for which a process that takes the place of a killed one waits for the lock: a file server may hold it on.
WAIT = 120


def check_nothing_there(work_dir: str | Path, resumed_from: str | None = None) -> None:
    """Raise an `InputError` if a work dir holds checkpoints that a training would overwrite.

    The training may go on from `resumed_from`, a checkpoint of the folder.
    """
    existing = sorted(path.name for path in Path(work_dir).glob('*.pth'))
    if not existing:
        return
    if resumed_from is None:
        raise InputError(
            f'{work_dir} already holds {existing[-1]}: add --resume to go on from it, '
            'or --work-dir for another folder'
        )
    if Path(resumed_from).resolve().parent != Path(work_dir).resolve():
        raise InputError(
            f'{work_dir} already holds {existing[-1]}, which the training from {resumed_from} would not go on from: '
            'add --resume without a file, or --work-dir for another folder'
        )


def set_resume(config: Config, resume: str | None, state_dict: dict[str, Tensor]) -> None:
    """Resume from a checkpoint that fits the model's state dict, or make sure that a fresh start overwrites none.

    Args:
        config: The config.
        resume: A checkpoint, or 'auto' for the latest in the work dir, or None for a fresh start.
        state_dict: The model's; may be on the meta device.

    Raises:
        InputError: The checkpoint is of another model, or has no state of a training, or its values cannot be used;
            or the work dir holds others.
    """
    path = latest_checkpoint(config.work_dir) if resume == 'auto' else resume
    if resume != 'auto':
        check_nothing_there(config.work_dir, path)
    if path is None:  # a fresh start, or the run ended before its first checkpoint
        if config.get('resume'):  # the config of a work dir whose training was resumed
            config.update(load_from=None, resume=False)
        return
    if '://' not in path and not Path(path).exists():
        raise InputError(f'checkpoint to resume from not found: {path}')
    config.load_from = path
    config.resume = True
    # A sharded checkpoint is read without its values: the shapes are enough here.
    values = not is_sharded(path)
    checkpoint = read_checkpoint(path, 'cpu' if values else 'meta')
    check_fit(path, weights_of(path, checkpoint, values), state_dict, strict=True)
    check_training_state(path, checkpoint, values)
    if 'own_data' in config:
        check_classes(path, checkpoint, config)
    if config.randomness.seed is None:
        # The seed was drawn. The samplers take it before mmengine resumes.
        config.randomness.seed = checkpoint['meta'].get('seed')


def set_start(config: Config, model: nn.Module) -> None:
    """Let a config start from the weights that its `load_from` names alone, also from those of other classes.

    Raises:
        InputError: The checkpoint is of another model than `model`, which may be on the meta device.
    """
    path = config.get('load_from')
    if not path or config.get('resume'):
        return
    weights_for(model, path, read_state_dict(path), any_classes=True)
    add_hook(config, 'LeaveOutOtherClassesHook')
    for module in (config.model, config.model.get('backbone', {})):
        if module.get('init_cfg'):
            module.init_cfg = None


def forget_initial_weights(model: nn.Module | dict) -> None:
    """Let a model, built or still a config, start without a file of weights: it goes on from a checkpoint."""
    for part in model.modules() if isinstance(model, nn.Module) else find_dicts(model):
        init_cfg = getattr(part, 'init_cfg', None)
        if isinstance(init_cfg, dict) and init_cfg.get('type') == 'Pretrained':
            part.init_cfg = None


@contextmanager
def locked(work_dir: str | Path, wait: float = 0) -> Iterator[None]:
    """Context in which no other process, on any machine, can train in a work dir, which is made.

    The lock is the system's, which ends with the process. After `wait` seconds for another training it raises an
    `InputError`. Of several processes of one run the main one takes it.
    """
    path = Path(work_dir) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + wait
    with path.open('a+') as file:
        while True:
            try:
                if fcntl:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                if time.monotonic() < end:
                    time.sleep(1)
                    continue
                file.seek(0)
                raise InputError(
                    f'{work_dir} is being trained in by {file.read().strip() or "another process"}: '
                    'wait for its end, or name another folder with --work-dir'
                ) from error
            except OSError:  # a file system without locks
                pass
            break
        file.truncate(0)
        file.write(f'process {os.getpid()} on {socket.gethostname()}\n')
        file.flush()
        yield
