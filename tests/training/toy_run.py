"""A training of a tiny model that takes a second: for what a run writes and reads."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS
from mmengine.runner import Runner
from torch import Tensor, nn

from bioattn_mm.checkpoints import mmengine_reads_all, read_checkpoint
from bioattn_mm.training.checkpoints import latest_checkpoint
from bioattn_mm.training.config.distributed import prepare_process, set_strategy
from bioattn_mm.training.runner import build_runner, failures_in_one_line
from bioattn_mm.training.start import set_resume, set_start
from bioattn_mm.training.step_log import summarised

from ..tools.running import forget_runs

STRATEGY = Path(__file__).parents[2] / 'configs/_base_/strategies/fsdp.py'
IMAGES = 4  # of a step


class ToyBackbone(nn.Sequential):
    def block_modules(self) -> list[nn.Module]:
        return list(self)


@MODELS.register_module()
class ToyModel(BaseModel):
    """Has what must be treated in its own way: blocks, batch norm, a frozen and a scalar-like parameter."""

    def __init__(self, has_norm: bool = True) -> None:
        super().__init__()
        self.backbone = ToyBackbone(*(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)) for _ in range(2)))
        self.norm = nn.BatchNorm1d(6) if has_norm else nn.Identity()
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.head = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor, mode: str) -> dict[str, Tensor]:
        out = self.head(self.norm(self.backbone(inputs).tanh()) * self.frozen) * self.scale
        return dict(loss=(out - inputs[:, :3]).square().mean())


@DATASETS.register_module()
class ToyImages(torch.utils.data.Dataset):
    """Random numbers, for each index the same."""

    def __len__(self) -> int:
        return 4 * IMAGES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return dict(inputs=torch.randn(6, generator=torch.Generator().manual_seed(index)))


def toy_config(iterations: int, world_size: int, interval: int = 2, **checkpoint: object) -> Config:
    """A run of as many images a step, whatever the number of processes."""
    loader = dict(dataset=dict(type='ToyImages'), batch_size=IMAGES // world_size)
    loader.update(sampler=dict(type='InfiniteSampler', shuffle=False), collate_fn=dict(type='default_collate'))
    optim_wrapper = dict(
        optimizer=dict(type='AdamW', lr=0.05, weight_decay=0.1),
        constructor='bioattn_mm.MergedGroupsConstructor',
        paramwise_cfg=dict(norm_decay_mult=0, custom_keys=dict(head=dict(lr_mult=0.5))),
        clip_grad=dict(max_norm=0.5),
    )
    saving = dict(type='bioattn_mm.AtomicCheckpointHook', by_epoch=False, interval=interval, **checkpoint)
    settings = dict(
        model=dict(type='ToyModel'),
        train_dataloader=loader,
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=iterations),
        optim_wrapper=optim_wrapper,
        param_scheduler=[dict(type='LinearLR', start_factor=0.1, end=6, by_epoch=False)],
        custom_hooks=[dict(type='bioattn_mm.SeedingHook'), dict(type='bioattn_mm.ShardableEMAHook', momentum=0.3)],
        default_hooks=dict(logger=dict(type='LoggerHook', interval=1), checkpoint=saving),
        randomness=dict(seed=0),
        sync_bn='torch',
        work_dir='.',
        log_level='WARNING',
    )
    return Config(settings)


def toy_train(config: Config, sharded: bool = True) -> None:
    """Train in this process, which may be one of several; go on if there is a checkpoint."""
    config.launcher = 'pytorch'
    prepare_process(config, config.launcher)
    if sharded:
        set_strategy(config, STRATEGY)
    config.load_from = latest_checkpoint('.')
    config.resume = config.load_from is not None
    with mmengine_reads_all():
        build_runner(config).train()


@HOOKS.register_module()
class AtStepHook(Hook):
    """Calls functions before steps."""

    def __init__(self, functions: dict) -> None:
        self.functions = functions

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        self.functions.get(runner.iter + 1, lambda _: None)(runner)


def validated(kind: type[Hook], **metrics: object) -> Callable[[Runner], None]:
    """A function that hands a hook the metrics of a validation."""
    return lambda runner: next(h for h in runner.hooks if isinstance(h, kind)).after_val_epoch(runner, metrics)


def run(
    folder: str,
    steps: int,
    functions: dict | None = None,
    resume: str | None = None,
    load_from: str | None = None,
    **checkpoint: object,
) -> None:
    """Train in a folder of the working directory, as tools/train.py does."""
    config = toy_config(steps, 1, **dict(interval=2, save_best='mIoU', rule='greater') | checkpoint)
    config.update(work_dir=folder, launcher='none', load_from=load_from)
    forget_runs()
    set_resume(config, resume, ToyModel().state_dict())
    set_start(config, ToyModel())
    with mmengine_reads_all(), failures_in_one_line(config) as hook:
        runner = build_runner(config)
        runner.register_hook(hook)
        runner.register_hook(AtStepHook(functions or {}))
        with summarised(runner):
            runner.train()


@HOOKS.register_module()
class SignalHook(Hook):
    """Sends the process a signal after an iteration; SIGXFSZ comes in the middle of writing the next checkpoint."""

    priority = 'HIGHEST'

    def __init__(self, name: str, after: int) -> None:
        self.signal, self.after = signal.Signals[name], after

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if runner.iter + 1 != self.after or runner.rank != 0:
            return
        if self.signal == signal.SIGXFSZ:
            size = next(Path().glob('iter_*.pth')).stat().st_size // 2
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        else:
            os.kill(os.getpid(), self.signal)


def assert_same(first: Path, second: Path, tolerance: float = 0) -> None:
    """All tensors of two checkpoints with which a run goes on."""
    a, b = (read_checkpoint(str(path)) for path in (first, second))
    for key in ('state_dict', 'ema_state_dict'):
        torch.testing.assert_close(a.get(key), b.get(key), rtol=tolerance, atol=tolerance)
    a, b = (each['optimizer']['state'] for each in (a, b))
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
