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
from .toy_run import ToyModel
from .trainings import largest_difference, make_comparable, new_folder, resume, small_config, train

STEPS = 12


def comparable(steps: int, world_size: int, accumulative_counts: int = 1) -> Config:
    config = small_config(steps * accumulative_counts)
    make_comparable(config, world_size, accumulative_counts)
    if accumulative_counts == 1:  # an average over steps, not over iterations
        config.custom_hooks.append(dict(type='bioattn_mm.ShardableEMAHook', momentum=0.1))
    return config


@pytest.fixture(scope='module')
def single(workplace: Path) -> Path:
    """The checkpoint of one process."""
    folder = new_folder(workplace, 'single')
    assert run_ranks(train, comparable(STEPS, 1), folder=folder) == [0], reasons(folder)
    return folder / f'iter_{STEPS}.pth'


@pytest.mark.slow
@pytest.mark.parametrize(('strategy', 'accumulative_counts'), [(None, 1), ('fsdp', 1), ('fsdp', 2)])
def test_two_processes_with_half_the_batch(
    workplace: Path, single: Path, strategy: str | None, accumulative_counts: int
) -> None:
    folder = new_folder(workplace, f'{strategy}_{accumulative_counts}')
    config = comparable(STEPS, 2, accumulative_counts)
    codes = run_ranks(train, config, 'pytorch', strategy, folder=folder, world_size=2)
    assert codes == [0, 0], reasons(folder)
    checkpoint = folder / f'iter_{STEPS * accumulative_counts}.pth'
    # Sums in another order; a wrong average of the gradients changes a weight by a thousandth in these steps.
    if accumulative_counts > 1:
        weights, expected = read_checkpoint(str(checkpoint))['state_dict'], read_checkpoint(str(single))
        for name, value in weights.items():
            torch.testing.assert_close(value, expected['ema_state_dict'][f'module.{name}'], rtol=0, atol=3e-5)
    else:
        assert largest_difference(checkpoint, single) < 3e-5
        assert largest_difference(checkpoint, single, 'ema_state_dict') < 3e-5


@pytest.mark.slow
def test_a_sharded_run_goes_on(workplace: Path) -> None:
    folders = [new_folder(workplace, f'fsdp_{name}') for name in ('whole', 'two_parts')]
    for folder, function, iterations in ((0, train, 4), (1, train, 2), (1, resume, 4)):
        config = comparable(iterations, 2)
        config.train_cfg.update(val_interval=2, val_begin=1)
        # The first validation is the best so far.
        config.default_hooks.checkpoint.update(interval=2, save_best='mIoU')
        config.val_dataloader.dataset.indices = 2
        codes = run_ranks(function, config, 'pytorch', 'fsdp', folder=folders[folder], world_size=2)
        assert codes == [0, 0], reasons(folders[folder])
    whole, two_parts = (folder / 'iter_4.pth' for folder in folders)
    for key in ('state_dict', 'ema_state_dict'):
        assert largest_difference(whole, two_parts, key) == 0
    assert not list(folders[1].glob('.*.part'))


def units(has_blocks: bool) -> None:
    """Write the names of the FSDP units of a model to a file for each rank."""
    torch.distributed.init_process_group('gloo')
    model = ToyModel()
    if not has_blocks:
        model.backbone = nn.Linear(6, 6)
    model = FSDP2Strategy()._wrap_model(model)
    names = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    Path(f'units{get_rank()}.txt').write_text(' '.join(names))
    torch.distributed.barrier()  # else one may end while the other still connects


@pytest.mark.parametrize(('has_blocks', 'expected'), [(True, ' backbone.blocks.0 backbone.blocks.1'), (False, '')])
def test_every_block_is_a_unit(tmp_path: Path, has_blocks: bool, expected: str) -> None:
    assert run_ranks(units, has_blocks, folder=tmp_path, world_size=2) == [0, 0], reasons(tmp_path)
    assert [(tmp_path / f'units{rank}.txt').read_text() for rank in range(2)] == [expected] * 2
