"""Several processes give what one gives; what they write is read by any number of them, and whole or not there."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.dist import get_rank
from mmengine.runner import find_latest_checkpoint
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.tensor import DTensor

from bioattn_mm.checkpoints import is_sharded, read_checkpoint
from bioattn_mm.errors import InputError
from bioattn_mm.training.checkpoints import latest_checkpoint
from bioattn_mm.training.strategies import FSDP2Strategy

from ..conftest import ROOT
from ..tools.running import InProcess, last_validation, metrics_of_test, run_forked
from ..tools.small_images import small_training
from .ranks import exit_codes, run_ranks
from .toy_run import STRATEGY, ToyModel, assert_same, toy_config, toy_train

STEPS, LAST = 6, 'iter_6.pth'


@pytest.fixture(scope='module')
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run by two processes, with checkpoints of steps 2, 4 and 6."""
    folder = tmp_path_factory.mktemp('two')
    run_ranks(toy_train, toy_config(STEPS, 2), folder=folder, world_size=2)
    return folder


@pytest.mark.parametrize(
    ('processes', 'sharded', 'from_file'), [(4, True, False), (2, False, False), (1, False, False), (2, True, True)]
)
def test_resumed_by_others(tmp_path: Path, two: Path, processes: int, sharded: bool, from_file: bool) -> None:
    if from_file:
        run_ranks(toy_train, toy_config(2, 1), False, folder=tmp_path)
        assert (tmp_path / 'iter_2.pth').is_file()
    else:
        shutil.copytree(two / 'iter_4.pth', tmp_path / 'iter_4.pth')
    run_ranks(toy_train, toy_config(STEPS, processes), sharded, folder=tmp_path, world_size=processes)
    assert (tmp_path / LAST).is_dir() == sharded
    assert_same(tmp_path / LAST, two / LAST, 1e-5)  # sums are in another order
    # The optimizer's groups are of parameters, not of what is left of them in a rank.
    groups = read_checkpoint(str(tmp_path / LAST))['optimizer']['param_groups']
    assert sorted(group['weight_decay'] for group in groups) == [0, 0.1, 0.1]
    assert read_checkpoint(str(two / 'iter_4.pth'))['meta']['iter'] == 4


def test_accumulated_gradients_of_shards_are_those_of_one_process(tmp_path: Path) -> None:
    checkpoints = []
    for processes, counts in ((1, 1), (2, 2)):
        config = toy_config(4 * counts, processes, 4 * counts)
        config.model.has_norm = False  # whose statistics are of a batch
        config.param_scheduler, config.custom_hooks = [], []
        config.train_dataloader.batch_size //= counts
        config.optim_wrapper.accumulative_counts = counts
        folder = tmp_path / f'{processes}'
        folder.mkdir()
        run_ranks(toy_train, config, processes > 1, folder=folder, world_size=processes)
        checkpoints.append(folder / f'iter_{4 * counts}.pth')
    assert_same(*checkpoints, 1e-5)


@pytest.mark.slow
def test_a_segmentor_is_divided_and_validated(workplace: Path, tool: InProcess) -> None:
    config, few = str(ROOT / 'tests/tools/upernet_small.py'), 'dataloader.dataset.indices=2'
    run_forked(
        workplace, 'train.py', config, '--mini', '--work-dir', 'divided', '--strategy', STRATEGY, '--cfg-options',
        'train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2', f'val_{few}',
        *small_training(config), world_size=2,
    )  # fmt: skip
    last, tested = workplace / 'divided/iter_2.pth', workplace / 'divided/tested'
    tool(workplace, 'test.py', config, last, '--mini', '--work-dir', tested, '--cfg-options', f'test_{few}')
    assert is_sharded(last) and metrics_of_test(tested) == last_validation(workplace / 'divided')


def train_and_die(config: Config) -> None:
    """Rank 1 is killed while it writes its part of the second checkpoint, and training goes on meanwhile."""
    forward, write, steps, writes = ToyModel.forward, FileSystemWriter.write_data, [], []

    def counted(model: ToyModel, *args: object, **kwargs: object) -> dict:
        steps.append(model)
        return forward(model, *args, **kwargs)

    def write_and_die(writer: FileSystemWriter, *args: object) -> object:
        writes.append(written := write(writer, *args))
        end = time.monotonic() + 30
        while os.environ['RANK'] == '1' and len(writes) == 2 and time.monotonic() < end:
            if len(steps) > 5:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
        return written

    ToyModel.forward, FileSystemWriter.write_data = counted, write_and_die
    toy_train(config)


def test_half_a_checkpoint_is_none(tmp_path: Path, two: Path) -> None:
    config = toy_config(STEPS, 2, max_keep_ckpts=1)
    codes = exit_codes(train_and_die, config, folder=tmp_path, world_size=2)
    assert codes[1] == -signal.SIGKILL and codes[0] not in (0, None)  # nor does the other one wait for ever
    # With one checkpoint to keep, the older one is kept until the newer one is whole.
    assert [path.name for path in tmp_path.glob('*.pth')] == ['iter_2.pth']
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_2.pth')
    # mmengine's runners take what `last_checkpoint` names for whole.
    assert Path(find_latest_checkpoint(str(tmp_path))).name == 'iter_2.pth'

    run_ranks(toy_train, config, folder=tmp_path, world_size=2)
    assert_same(tmp_path / LAST, two / LAST)
    assert [path.name for path in tmp_path.glob('*.pth')] == [LAST]
    assert not list(tmp_path.glob('.*.part'))


def test_saved_when_told_to_end(tmp_path: Path) -> None:
    config = toy_config(STEPS, 2)
    config.custom_hooks.append(dict(type='SignalHook', name='SIGTERM', after=1))
    assert exit_codes(toy_train, config, folder=tmp_path, world_size=2) == [128 + signal.SIGTERM] * 2
    assert Path(latest_checkpoint(tmp_path)).name == 'iter_1.pth' and is_sharded(tmp_path / 'iter_1.pth')


def test_folders_that_are_no_checkpoints(tmp_path: Path, two: Path) -> None:
    folder = tmp_path / LAST
    shutil.copytree(two / LAST, folder)
    shapes = read_checkpoint(str(folder), 'meta')['state_dict']
    assert shapes['head.weight'].is_meta and shapes['head.weight'].shape == (3, 6)
    (folder / '__1_0.distcp').rename(tmp_path / 'elsewhere')
    with pytest.raises(InputError, match='lacks __1_0.distcp: all machines of a training must write into the same'):
        read_checkpoint(str(folder))
    shutil.copytree(two / 'iter_4.pth', tmp_path / 'iter_4.pth')
    (folder / '.metadata').unlink()
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_4.pth')
    with pytest.raises(InputError, match='is a folder and no whole checkpoint'):
        read_checkpoint(str(folder))
    # No code is run.
    torch.save(os.system, tmp_path / 'iter_4.pth/rest.pth')
    with pytest.raises(InputError, match=r'holds more than weights: (posix|os)\.system'):
        read_checkpoint(str(tmp_path / 'iter_4.pth'))


def mixed_precision() -> None:
    """A step and a prediction in bfloat16."""
    torch.distributed.init_process_group('gloo')
    strategy = FSDP2Strategy(param_dtype='bfloat16')
    model = strategy._wrap_model(ToyModel())
    dtypes = []
    model.backbone[0][0].register_forward_pre_hook(lambda module, _: dtypes.append(module.weight.dtype))
    batch = dict(inputs=torch.randn(4, 6, generator=torch.Generator().manual_seed(get_rank())))
    with torch.autocast('cpu', torch.bfloat16):
        model(**batch, mode='loss')['loss'].backward()
    strategy.model = model
    strategy.gather_blocks()
    with torch.autocast('cpu', torch.bfloat16), torch.no_grad():
        model(**batch, mode='loss')
    strategy.free_blocks()
    assert dtypes == [torch.bfloat16] * 2
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor) and parameter.dtype == torch.float32
        assert (parameter.grad is None) == (name == 'frozen')
        assert parameter.grad is None or parameter.grad.dtype == torch.float32
    # The norm of the gradients of all ranks, not of each one's own.
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    whole = torch.stack([p.grad.full_tensor().norm() for p in model.parameters() if p.grad is not None]).norm()
    assert float(total) > 0.01 and float(whole) == pytest.approx(0.01, rel=1e-3)


def test_mixed_precision(tmp_path: Path) -> None:
    run_ranks(mixed_precision, folder=tmp_path, world_size=2)
