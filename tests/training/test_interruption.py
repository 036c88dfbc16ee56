"""Runs that are killed, told to end, or out of space go on as if nothing had been."""

import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from bioattn_mm.training.checkpoints import SIGNALS, latest_checkpoint

from .ranks import reasons, run_ranks
from .toy_run import toy_config, toy_train
from .trainings import largest_difference, limit_file_size, new_folder, resume, small_config, train

STEPS, INTERVAL = 8, 3


def interruptible(name: str) -> Config:
    """Everything that is random is on; Mask R-CNN trains by epochs of two steps, the others by iterations."""
    if name == 'toy':
        return toy_config(STEPS, 1, INTERVAL)
    config = small_config(name, STEPS)
    config.model.backbone.drop_path_rate = 0.3
    config.default_hooks.checkpoint.interval = INTERVAL
    config.custom_hooks.append(dict(type='bioattn_mm.ShardableEMAHook', momentum=0.1))
    if name == 'mask_rcnn':
        config.train_cfg = dict(type='bioattn_mm.ResumableEpochBasedTrainLoop', max_epochs=4, val_begin=1000)
        config.train_dataloader.sampler.type = 'DefaultSampler'
        config.default_hooks.checkpoint.update(by_epoch=True, interval=1)
        config.model.train_cfg.rcnn.sampler.num = 16
    return config


def run(name: str, function: Callable, config: Config, folder: Path) -> int:
    """The exit code of a training in a process of its own."""
    arguments = (toy_train, config, False) if name == 'toy' else (function, config)
    (code,) = run_ranks(*arguments, folder=folder)
    return code


def last_of(name: str) -> str:
    return 'epoch_4.pth' if name == 'mask_rcnn' else f'iter_{STEPS}.pth'


@pytest.fixture(scope='module')
def new(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Makes a folder for a run with the data that its model needs."""

    def make(name: str, what: str) -> Path:
        if name == 'toy':
            return tmp_path_factory.mktemp(what)
        return new_folder(request.getfixturevalue('workplace'), f'{name}_{what}')

    return make


@pytest.fixture(scope='module')
def uninterrupted(new: Callable[[str, str], Path]) -> Callable[[str], Path]:
    """The last checkpoint of a run that nothing happened to."""

    @cache
    def checkpoint(name: str) -> Path:
        folder = new(name, 'uninterrupted')
        assert run(name, train, interruptible(name), folder) == 0, reasons(folder)
        return folder / last_of(name)

    return checkpoint


@pytest.mark.parametrize(
    ('name', 'signal_hook', 'left'),
    [
        ('toy', dict(name='SIGKILL', after=5), ['iter_3.pth']),
        ('toy', dict(name='SIGXFSZ', after=6), ['.iter_6.pth.part', 'iter_3.pth']),
        ('toy', dict(name='SIGINT', after=5), ['iter_3.pth', 'iter_5.pth']),
        pytest.param('upernet', dict(name='SIGKILL', after=5), ['iter_3.pth'], marks=pytest.mark.slow),
        # In the middle of the third epoch.
        pytest.param(
            'mask_rcnn', dict(name='SIGTERM', after=5), ['epoch_2.pth', 'iter_5.pth'], marks=pytest.mark.slow
        ),
    ],
)
def test_goes_on_to_the_same_weights(
    new: Callable, uninterrupted: Callable[[str], Path], name: str, signal_hook: dict, left: list[str]
) -> None:
    folder = new(name, signal_hook['name'])
    config = interruptible(name)
    # With one checkpoint to keep, the old one must outlive the writing of the new one.
    config.default_hooks.checkpoint.max_keep_ckpts = 1
    config.custom_hooks = [*config.custom_hooks, dict(type='SignalHook', **signal_hook)]
    number = signal.Signals[signal_hook['name']]
    expected = 128 + number if number in SIGNALS else -number
    assert run(name, train, config, folder) == expected, reasons(folder)
    assert sorted(path.name for pattern in ('*.pth', '.*.part') for path in folder.glob(pattern)) == left

    assert run(name, resume, interruptible(name), folder) == 0, reasons(folder)
    assert not list(folder.glob('.*.part'))
    for key in ('state_dict', 'ema_state_dict'):
        assert largest_difference(folder / last_of(name), uninterrupted(name), key) == 0


def test_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    assert run_ranks(toy_train, toy_config(2, 1), False, folder=tmp_path) == [0], reasons(tmp_path)
    size = (tmp_path / 'iter_2.pth').stat().st_size
    assert run_ranks(resume_with_little_space, toy_config(4, 1), size // 2, folder=tmp_path) == [1]
    assert 'OSError: [Errno 27] File too large' in reasons(tmp_path)
    assert [path.name for path in tmp_path.glob('*.pth')] == ['iter_2.pth']
    assert not list(tmp_path.glob('.*.part'))
    torch.load(tmp_path / 'iter_2.pth', weights_only=False)


def resume_with_little_space(config: Config, num_bytes: int) -> None:
    limit_file_size(num_bytes, signal.SIG_IGN)
    toy_train(config, sharded=False)


@pytest.mark.slow
def test_a_rank_whose_peer_dies_ends(workplace: Path) -> None:
    folder = new_folder(workplace, 'peer')
    config = interruptible('upernet')
    config.env_cfg.dist_cfg.timeout = 20
    config.custom_hooks = [dict(type='SignalHook', name='SIGKILL', after=3, rank=1)]
    # A rank that waits for ever has no exit code.
    assert run_ranks(train, config, 'pytorch', folder=folder, world_size=2) == [1, -signal.SIGKILL]
    assert 'Connection closed by peer' in reasons(folder) or 'Timed out' in reasons(folder)


@pytest.mark.slow
def test_the_same_losses_twice(workplace: Path) -> None:
    checkpoints = []
    for index, seed in enumerate((0, 0, 1)):
        config = interruptible('upernet')
        config.randomness = dict(seed=seed, deterministic=True)
        config.train_cfg.max_iters = INTERVAL
        folder = new_folder(workplace, f'deterministic_{index}')
        assert run_ranks(train, config, folder=folder) == [0], reasons(folder)
        checkpoints.append(folder / f'iter_{INTERVAL}.pth')
    first, second, other = checkpoints
    assert largest_difference(first, second) == 0
    assert largest_difference(first, other) > 1e-3


def test_latest_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    for name in ('iter_9.pth', 'iter_10.pth', 'best_mIoU_iter_10.pth'):
        (tmp_path / name).touch()
        time.sleep(0.01)
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_10.pth')
    (tmp_path / 'last_checkpoint').write_text('')  # killed while writing it
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_10.pth')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_9.pth'))
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_9.pth')
    (tmp_path / 'last_checkpoint').write_text('moved/iter_9.pth')
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_9.pth')
    (tmp_path / 'last_checkpoint').write_text('moved/iter_11.pth')
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_10.pth')
