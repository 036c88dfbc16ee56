"""Several processes give what one gives; what they write is read by any number of them, and whole or not there."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner, find_latest_checkpoint
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.tensor import DTensor

from bioattn_mm.checkpoints import is_sharded, read_checkpoint
from bioattn_mm.errors import InputError
from bioattn_mm.training.checkpoints import latest_checkpoint
from bioattn_mm.training.strategies import FSDP2Strategy

from ..conftest import ROOT
from ..tools.running import InProcess, last_validation, metrics_of_test, run_forked
from ..tools.small_images import small_training
from .ranks import reasons, run_ranks
from .toy_run import STRATEGY, ToyModel, largest_difference, toy_config, toy_train

STEPS = 6


@pytest.fixture(scope='module')
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run by two processes, with checkpoints of steps 2, 4 and 6."""
    folder = tmp_path_factory.mktemp('two')
    assert run_ranks(toy_train, toy_config(STEPS, 2), folder=folder, world_size=2) == [0, 0], reasons(folder)
    return folder


def assert_same(first: Path, second: Path, tolerance: float) -> None:
    """All tensors of two checkpoints, with which a run goes on."""
    checkpoints = [read_checkpoint(str(path)) for path in (first, second)]
    for key in ('state_dict', 'ema_state_dict'):
        torch.testing.assert_close(*(each[key] for each in checkpoints), rtol=tolerance, atol=tolerance)
    a, b = (each['optimizer']['state'] for each in checkpoints)
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(('processes', 'sharded'), [(4, True), (2, False), (1, False)])
def test_resumed_by_others(tmp_path: Path, two: Path, processes: int, sharded: bool) -> None:
    shutil.copytree(two / 'iter_4.pth', tmp_path / 'iter_4.pth')
    codes = run_ranks(toy_train, toy_config(STEPS, processes), sharded, folder=tmp_path, world_size=processes)
    assert codes == [0] * processes, reasons(tmp_path)
    assert (tmp_path / f'iter_{STEPS}.pth').is_dir() == sharded
    assert_same(tmp_path / f'iter_{STEPS}.pth', two / f'iter_{STEPS}.pth', 1e-5)  # sums are in another order
    # The optimizer's groups are of parameters, not of what is left of them in a rank.
    groups = read_checkpoint(str(tmp_path / f'iter_{STEPS}.pth'))['optimizer']['param_groups']
    assert sorted(group['weight_decay'] for group in groups) == [0, 0.1, 0.1]
    assert read_checkpoint(str(two / 'iter_4.pth'))['meta']['iter'] == 4


def test_goes_on_from_a_file(tmp_path: Path, two: Path) -> None:
    codes = run_ranks(toy_train, toy_config(2, 1), False, folder=tmp_path)
    assert codes == [0] and (tmp_path / 'iter_2.pth').is_file(), reasons(tmp_path)
    codes = run_ranks(toy_train, toy_config(STEPS, 2), folder=tmp_path, world_size=2)
    assert codes == [0, 0], reasons(tmp_path)
    assert_same(tmp_path / f'iter_{STEPS}.pth', two / f'iter_{STEPS}.pth', 1e-5)


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
        codes = run_ranks(toy_train, config, processes > 1, folder=folder, world_size=processes)
        assert codes == [0] * processes, reasons(folder)
        checkpoints.append(folder / f'iter_{4 * counts}.pth')
    assert largest_difference(*checkpoints) < 1e-5


@pytest.mark.slow
def test_a_segmentor_is_divided_validated_and_goes_on(workplace: Path, tool: InProcess) -> None:
    config, few = str(ROOT / 'tests/tools/upernet_small.py'), 'dataloader.dataset.indices=2'
    for steps, resume in ((2, ()), (4, ('--resume',))):
        run_forked(
            workplace, 'train.py', config, '--mini', '--work-dir', 'divided', '--strategy', STRATEGY, *resume,
            '--cfg-options', f'train_cfg.max_iters={steps}', 'train_cfg.val_interval=2', f'val_{few}',
            'default_hooks.checkpoint.interval=2', *small_training(config),
            world_size=2,
        )  # fmt: skip
    last = workplace / 'divided/iter_4.pth'
    tool(workplace, 'test.py', config, last, '--mini', '--work-dir', 'divided/tested', '--cfg-options', f'test_{few}')
    assert is_sharded(last) and metrics_of_test(workplace / 'divided/tested') == last_validation(
        workplace / 'divided'
    )


@HOOKS.register_module()
class MarkStepHook(Hook):
    """Makes a file after each step of rank 1."""

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if runner.rank == 1:
            Path(f'step_{runner.iter + 1}').touch()


def train_and_die(config: object) -> None:
    """Rank 1 is killed while it writes its part of the second checkpoint, two steps after that was begun."""
    write = FileSystemWriter.write_data

    def write_and_die(writer: FileSystemWriter, *args: object) -> object:
        written, end = write(writer, *args), time.monotonic() + 30
        if os.environ['RANK'] == '1' and Path('step_4').exists():
            while not Path('step_5').exists() and time.monotonic() < end:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    FileSystemWriter.write_data = write_and_die
    toy_train(config)


def test_half_a_checkpoint_is_none(tmp_path: Path, two: Path) -> None:
    config = toy_config(STEPS, 2, max_keep_ckpts=1)
    config.custom_hooks.append(dict(type='MarkStepHook', priority='HIGHEST'))
    codes = run_ranks(train_and_die, config, folder=tmp_path, world_size=2)
    assert codes[1] == -signal.SIGKILL and codes[0] != 0
    assert (tmp_path / 'step_5').exists()  # training went on while it was written
    # With one checkpoint to keep, the older one is kept until the newer one is whole.
    assert [path.name for path in tmp_path.glob('*.pth')] == ['iter_2.pth']
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_2.pth')
    # mmengine's runners take what `last_checkpoint` names for whole.
    assert Path(find_latest_checkpoint(str(tmp_path))).name == 'iter_2.pth'

    config.custom_hooks.pop()
    assert run_ranks(toy_train, config, folder=tmp_path, world_size=2) == [0, 0], reasons(tmp_path)
    assert_same(tmp_path / f'iter_{STEPS}.pth', two / f'iter_{STEPS}.pth', 0)
    assert [path.name for path in tmp_path.glob('*.pth')] == [f'iter_{STEPS}.pth']
    assert not list(tmp_path.glob('.*.part'))


def test_saved_when_told_to_end(tmp_path: Path) -> None:
    config = toy_config(STEPS, 2)
    config.custom_hooks.append(dict(type='SignalHook', name='SIGTERM', after=1))
    assert run_ranks(toy_train, config, folder=tmp_path, world_size=2) == [128 + signal.SIGTERM] * 2
    assert Path(latest_checkpoint(tmp_path)).name == 'iter_1.pth' and is_sharded(tmp_path / 'iter_1.pth')


def test_folders_that_are_no_checkpoints(tmp_path: Path, two: Path) -> None:
    folder = tmp_path / 'iter_6.pth'
    shutil.copytree(two / 'iter_6.pth', folder)
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
    model.backbone.blocks[0][0].register_forward_pre_hook(lambda module, _: dtypes.append(module.weight.dtype))
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
    assert run_ranks(mixed_precision, folder=tmp_path, world_size=2) == [0, 0], reasons(tmp_path)
