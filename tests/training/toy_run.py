"""A training of a tiny model that takes a second: for what a run writes and reads."""

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from torch import Tensor, nn

from bioattn_mm.checkpoints import mmengine_reads_all
from bioattn_mm.training.checkpoints import latest_checkpoint
from bioattn_mm.training.config.distributed import prepare_process, set_strategy
from bioattn_mm.training.runner import build_runner

ROOT = Path(__file__).parents[2]
STRATEGY = ROOT / 'configs/_base_/strategies/fsdp.py'
IMAGES = 4  # of a step


class ToyBackbone(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)) for _ in range(2))

    def block_modules(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@MODELS.register_module()
class ToyModel(BaseModel):
    """Has what must be treated in its own way: blocks, batch norm, a frozen and a scalar-like parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = ToyBackbone()
        self.norm = nn.BatchNorm1d(6)
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
    average = dict(type='bioattn_mm.ShardableEMAHook', momentum=0.3)
    return Config(
        dict(
            model=dict(type='ToyModel'),
            train_dataloader=loader,
            train_cfg=dict(type='IterBasedTrainLoop', max_iters=iterations),
            optim_wrapper=optim_wrapper,
            param_scheduler=[dict(type='LinearLR', start_factor=0.1, end=6, by_epoch=False)],
            custom_hooks=[dict(type='bioattn_mm.SeedingHook'), average],
            default_hooks=dict(logger=dict(type='LoggerHook', interval=1), checkpoint=saving),
            randomness=dict(seed=0),
            sync_bn='torch',
            work_dir='.',
            log_level='WARNING',
        )
    )


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
