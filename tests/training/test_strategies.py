"""Training in several processes gives what one gives: DDP, FSDP, accumulated gradients, averaged weights."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.dist import get_rank
from torch import nn
from torch.distributed.fsdp import FSDPModule

from bioattn_mm.checkpoints import read_checkpoint
from bioattn_mm.training.strategies import FSDP2Strategy

from .ranks import reasons, run_ranks
from .trainings import largest_difference, make_comparable, new_folder, resume, small_config, train

STEPS = 12
EMA = dict(type='bioattn_mm.ShardableEMAHook', momentum=0.1)


def comparable(name: str, world_size: int, accumulative_counts: int = 1) -> Config:
    config = small_config(name, STEPS * accumulative_counts)
    make_comparable(config, world_size, accumulative_counts)
    config.custom_hooks.append(EMA)
    return config


@pytest.fixture(scope='module')
def single(workplace: Path) -> dict[str, Path]:
    """Checkpoints of one process."""
    checkpoints = {}
    for name in ('upernet', 'mask_rcnn'):
        folder = new_folder(workplace, f'{name}_single')
        assert run_ranks(train, comparable(name, 1), folder=folder) == [0], reasons(folder)
        checkpoints[name] = folder / f'iter_{STEPS}.pth'
    return checkpoints


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'strategy', 'accumulative_counts'),
    [
        ('upernet', None, 1),
        ('mask_rcnn', None, 1),
        ('upernet', 'fsdp', 1),
        ('upernet', 'fsdp', 2),
        ('mask_rcnn', 'fsdp', 1),
    ],
)
def test_two_processes_with_half_the_batch(
    workplace: Path, single: dict[str, Path], name: str, strategy: str | None, accumulative_counts: int
) -> None:
    folder = new_folder(workplace, f'{name}_{strategy}_{accumulative_counts}')
    config = comparable(name, 2, accumulative_counts)
    if accumulative_counts > 1:  # an average over steps, not over iterations
        config.custom_hooks.pop()
    codes = run_ranks(train, config, 'pytorch', strategy, folder=folder, world_size=2)
    assert codes == [0, 0], reasons(folder)
    checkpoint = folder / f'iter_{STEPS * accumulative_counts}.pth'
    # Sums in another order; a wrong average of the gradients changes a weight by a thousandth in these steps.
    if accumulative_counts > 1:
        assert difference_of_weights(checkpoint, single[name]) < 3e-5
    else:
        assert largest_difference(checkpoint, single[name]) < 3e-5
        assert largest_difference(checkpoint, single[name], 'ema_state_dict') < 3e-5


@pytest.mark.slow
def test_a_sharded_run_goes_on(workplace: Path) -> None:
    folders = [new_folder(workplace, f'fsdp_{name}') for name in ('whole', 'two_parts')]
    for folder, function, iterations in ((0, train, 4), (1, train, 2), (1, resume, 4)):
        config = comparable('upernet', 2)
        config.train_cfg.update(max_iters=iterations, val_interval=2, val_begin=1)
        # The first validation is the best so far.
        config.default_hooks.checkpoint.update(interval=2, save_best='mIoU')
        config.val_dataloader.dataset.indices = 2
        codes = run_ranks(function, config, 'pytorch', 'fsdp', folder=folders[folder], world_size=2)
        assert codes == [0, 0], reasons(folders[folder])
    whole, two_parts = (folder / 'iter_4.pth' for folder in folders)
    for key in ('state_dict', 'ema_state_dict'):
        assert largest_difference(whole, two_parts, key) == 0
    assert not list(folders[1].glob('.*.part'))


class Toy(nn.Module):
    """A model whose backbone names its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
        self.head = nn.Linear(2, 2)


class ToyBackbone(nn.Sequential):
    def block_modules(self) -> list[nn.Module]:
        return list(self[1:])


def units(backbone: type[nn.Module]) -> None:
    """Write the names of the FSDP units of a model to a file for each rank."""
    torch.distributed.init_process_group('gloo')
    model = Toy()
    model.backbone = backbone(*model.backbone)
    model = FSDP2Strategy()._wrap_model(model)
    names = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    Path(f'units{get_rank()}.txt').write_text(' '.join(names))
    torch.distributed.barrier()  # else one may end while the other still connects


@pytest.mark.parametrize(('backbone', 'expected'), [(ToyBackbone, ' backbone.1 backbone.2'), (nn.Sequential, '')])
def test_every_block_is_a_unit(tmp_path: Path, backbone: type[nn.Module], expected: str) -> None:
    assert run_ranks(units, backbone, folder=tmp_path, world_size=2) == [0, 0], reasons(tmp_path)
    assert [(tmp_path / f'units{rank}.txt').read_text() for rank in range(2)] == [expected] * 2


def difference_of_weights(without_average: Path, with_average: Path) -> float:
    a = read_checkpoint(str(without_average))['state_dict']
    b = read_checkpoint(str(with_average))['ema_state_dict']
    return max((a[name].double() - b[f'module.{name}'].double()).abs().max().item() for name in a)
