"""Runs that are killed, told to end, or out of space go on as if nothing had been."""

import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import LocalBackend, get_file_backend
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner

from bioattn_mm.training.checkpoints import SIGNALS, latest_checkpoint

from .ranks import reasons, run_ranks
from .trainings import largest_difference, limit_file_size, new_folder, resume, small_config, train

STEPS, INTERVAL = 8, 3


def interruptible(name: str) -> Config:
    """Everything that is random is on; Mask R-CNN trains by epochs of two steps, UperNet by iterations."""
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


def last_of(name: str) -> str:
    return 'epoch_4.pth' if name == 'mask_rcnn' else f'iter_{STEPS}.pth'


@pytest.fixture(scope='module')
def uninterrupted(workplace: Path) -> Callable[[str], Path]:
    """The last checkpoint of a run that nothing happened to."""

    @cache
    def checkpoint(name: str) -> Path:
        folder = new_folder(workplace, f'{name}_uninterrupted')
        assert run_ranks(train, interruptible(name), folder=folder) == [0], reasons(folder)
        return folder / last_of(name)

    return checkpoint


@pytest.mark.parametrize(
    ('name', 'signal_hook', 'left'),
    [
        ('upernet', dict(name='SIGKILL', after=5), ['iter_3.pth']),
        pytest.param(
            'upernet', dict(name='SIGXFSZ', after=6), ['.iter_6.pth.part', 'iter_3.pth'], marks=pytest.mark.slow
        ),
        ('upernet', dict(name='SIGINT', after=5), ['iter_3.pth', 'iter_5.pth']),
        # In the middle of the third epoch.
        pytest.param(
            'mask_rcnn', dict(name='SIGTERM', after=5), ['epoch_2.pth', 'iter_5.pth'], marks=pytest.mark.slow
        ),
    ],
)
def test_goes_on_to_the_same_weights(
    workplace: Path, uninterrupted: Callable[[str], Path], name: str, signal_hook: dict, left: list[str]
) -> None:
    folder = new_folder(workplace, f'{name}_{"_".join(map(str, signal_hook.values()))}')
    config = interruptible(name)
    # With one checkpoint to keep, the old one must outlive the writing of the new one.
    config.default_hooks.checkpoint.max_keep_ckpts = 1
    config.custom_hooks = [*config.custom_hooks, dict(type='SignalHook', **signal_hook)]
    number = signal.Signals[signal_hook['name']]
    expected = 128 + number if number in SIGNALS else -number
    assert run_ranks(train, config, folder=folder) == [expected], reasons(folder)
    assert sorted(path.name for pattern in ('*.pth', '.*.part') for path in folder.glob(pattern)) == left

    assert run_ranks(resume, interruptible(name), folder=folder) == [0], reasons(folder)
    assert not list(folder.glob('.*.part'))
    for key in ('state_dict', 'ema_state_dict'):
        assert largest_difference(folder / last_of(name), uninterrupted(name), key) == 0


def test_full_disk_leaves_the_last_checkpoint(workplace: Path) -> None:
    folder = new_folder(workplace, 'full_disk')
    config = interruptible('upernet')
    config.train_cfg.max_iters = INTERVAL
    config.custom_hooks.pop()
    assert run_ranks(train, config, folder=folder) == [0], reasons(folder)
    config.train_cfg.max_iters = STEPS
    size = (folder / 'iter_3.pth').stat().st_size
    assert run_ranks(resume_with_little_space, config, size // 2, folder=folder) == [1]
    assert 'OSError: [Errno 27] File too large' in reasons(folder)
    assert [path.name for path in folder.glob('*.pth')] == ['iter_3.pth']
    assert not list(folder.glob('.*.part'))
    torch.load(folder / 'iter_3.pth', weights_only=False)


def resume_with_little_space(config: Config, num_bytes: int) -> None:
    limit_file_size(num_bytes, signal.SIG_IGN)
    resume(config)


@pytest.mark.slow
def test_a_rank_whose_peer_dies_ends(workplace: Path) -> None:
    folder = new_folder(workplace, 'peer')
    config = interruptible('upernet')
    config.env_cfg.dist_cfg.timeout = 20
    config.custom_hooks = [dict(type='SignalHook', name='SIGKILL', after=3, rank=1)]
    # A rank that waits for ever has no exit code.
    assert run_ranks(train, config, 'pytorch', folder=folder, world_size=2) == [1, -signal.SIGKILL]
    assert 'Connection closed by peer' in reasons(folder) or 'Timed out' in reasons(folder)


class FailingModel(BaseModel):
    """Raises an error in the second iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.iterations = 0

    def forward(self, inputs: list, mode: str) -> dict:
        self.iterations += 1
        if self.iterations > 1:
            raise RuntimeError('failed')
        return dict(loss=self.weight.sum())


def test_what_is_replaced_is_put_back_after_an_exception(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    runner = Runner(
        FailingModel(),
        work_dir=str(tmp_path),
        train_dataloader=dict(dataset=[dict(inputs=0)], sampler=dict(type='InfiniteSampler'), batch_size=1),
        train_cfg=dict(by_epoch=False, max_iters=2),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(checkpoint=dict(type='bioattn_mm.AtomicCheckpointHook', by_epoch=False, interval=1)),
        experiment_name=tmp_path.name,
    )
    during = []
    runner.register_hook(HandlerHook(during))
    with pytest.raises(RuntimeError, match='failed'):
        runner.train()
    assert during and during[0] != handler
    assert signal.getsignal(signal.SIGTERM) == handler
    assert (tmp_path / 'iter_1.pth').exists()
    assert type(get_file_backend(str(tmp_path))) is LocalBackend


class HandlerHook(Hook):
    """Notes the handler of SIGTERM in the first iteration."""

    def __init__(self, handlers: list) -> None:
        self.handlers = handlers

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        self.handlers.append(signal.getsignal(signal.SIGTERM))


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
