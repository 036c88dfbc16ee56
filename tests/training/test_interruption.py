"""Runs that are killed, told to end, or out of space go on as if nothing had been."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from bioattn_mm.training.checkpoints import SIGNALS, latest_checkpoint

from .ranks import reasons, run_ranks
from .toy_run import largest_difference, limit_file_size, toy_config, toy_train

STEPS, INTERVAL = 8, 3


def toy(by_epoch: bool = False) -> Config:
    config = toy_config(STEPS, 1, INTERVAL)
    if by_epoch:  # of four steps
        config.train_cfg = dict(type='bioattn_mm.ResumableEpochBasedTrainLoop', max_epochs=2)
        config.train_dataloader.sampler.type = 'DefaultSampler'
        config.default_hooks.checkpoint.update(by_epoch=True, interval=1)
    return config


def toy_run(config: Config, folder: Path, world_size: int = 1) -> list[int]:
    return run_ranks(toy_train, config, False, folder=folder, world_size=world_size)


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The folders of a run by iterations and of one by epochs that nothing happens to."""
    folders = {by_epoch: tmp_path_factory.mktemp('uninterrupted') for by_epoch in (False, True)}
    for by_epoch, folder in folders.items():
        assert toy_run(toy(by_epoch), folder) == [0], reasons(folder)
    return folders


@pytest.mark.parametrize(
    ('by_epoch', 'name', 'after', 'left'),
    [
        (False, 'SIGXFSZ', 6, ['.iter_6.pth.part', 'iter_3.pth']),
        (True, 'SIGTERM', 6, ['epoch_1.pth', 'iter_6.pth']),
    ],
)
def test_goes_on_to_the_same_weights(
    by_epoch: bool, name: str, after: int, left: list[str], tmp_path: Path, uninterrupted: dict[bool, Path]
) -> None:
    config, number = toy(by_epoch), signal.Signals[name]
    # With one checkpoint to keep, the old one must outlive the writing of the new one.
    config.default_hooks.checkpoint.max_keep_ckpts = 1
    config.custom_hooks = [*config.custom_hooks, dict(type='SignalHook', name=name, after=after)]
    assert toy_run(config, tmp_path) == [128 + number if number in SIGNALS else -number], reasons(tmp_path)
    assert sorted(path.name for pattern in ('*.pth', '.*.part') for path in tmp_path.glob(pattern)) == left
    assert toy_run(toy(by_epoch), tmp_path) == [0], reasons(tmp_path)
    assert not list(tmp_path.glob('.*.part'))
    last = 'epoch_2.pth' if by_epoch else 'iter_8.pth'
    for key in ('state_dict', 'ema_state_dict'):
        assert largest_difference(tmp_path / last, uninterrupted[by_epoch] / last, key) == 0


def test_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    assert toy_run(toy_config(2, 1), tmp_path) == [0], reasons(tmp_path)
    size = (tmp_path / 'iter_2.pth').stat().st_size
    assert run_ranks(resume_with_little_space, toy_config(4, 1), size // 2, folder=tmp_path) == [1]
    assert 'OSError: [Errno 27] File too large' in reasons(tmp_path)
    assert [path.name for path in tmp_path.glob('*.pth')] == ['iter_2.pth']
    assert not list(tmp_path.glob('.*.part'))
    torch.load(tmp_path / 'iter_2.pth', weights_only=False)


def resume_with_little_space(config: Config, num_bytes: int) -> None:
    limit_file_size(num_bytes, signal.SIG_IGN)
    toy_train(config, sharded=False)


def test_a_rank_whose_peer_dies_ends(tmp_path: Path) -> None:
    config = toy_config(STEPS, 2)
    config.env_cfg = dict(dist_cfg=dict(timeout=20))
    config.custom_hooks = [dict(type='SignalHook', name='SIGKILL', after=3, rank=1)]
    # A rank that waits for ever has no exit code.
    assert toy_run(config, tmp_path, world_size=2) == [1, -signal.SIGKILL]
    assert re.search('Connection (closed|reset) by peer|Timed out', reasons(tmp_path))


def test_latest_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    for second, name in enumerate(('iter_9.pth', 'iter_10.pth', 'best_mIoU_iter_10.pth')):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (second, second))
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_10.pth')
    for named, latest in (
        ('', 'iter_10.pth'),  # killed while writing it
        (str(tmp_path / 'iter_9.pth'), 'iter_9.pth'),
        ('moved/iter_9.pth', 'iter_9.pth'),
        ('moved/iter_11.pth', 'iter_10.pth'),
    ):
        (tmp_path / 'last_checkpoint').write_text(named)
        assert latest_checkpoint(tmp_path) == str(tmp_path / latest)
