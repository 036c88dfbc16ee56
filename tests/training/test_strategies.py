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
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner, find_latest_checkpoint
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.tensor import DTensor

from bioattn_mm.checkpoints import is_sharded, read_checkpoint
from bioattn_mm.errors import InputError
from bioattn_mm.training.checkpoints import latest_checkpoint
from bioattn_mm.training.config.mini import make_mini
from bioattn_mm.training.strategies import FSDP2Strategy

from ..conftest import ROOT
from .ranks import reasons, run_ranks
from .toy_run import ToyModel, largest_difference, toy_config, toy_train

STEPS = 6
IMAGES = 4


def comparable(steps: int, processes: int, counts: int) -> Config:
    """A run of UperNet with the same step, whatever the number of processes: nothing random, nothing of a batch."""
    config, size = make_mini(Config.fromfile(ROOT / 'tests/tools/upernet_small.py')), (96, 64)
    # Bilinear resizing of the bias would add rounding to what is compared.
    config.model.backbone.bias_mode = 'extrapolate'
    config.model.data_preprocessor.size = size[::-1]
    for head in (config.model.decode_head, config.model.auxiliary_head):
        head.update(norm_cfg=dict(type='GN', num_groups=4), dropout_ratio=0)
    loader = config.train_dataloader
    batch_size = IMAGES // processes // counts
    loader.update(batch_size=batch_size, num_workers=0, persistent_workers=False)
    loader.sampler.shuffle, loader.dataset.indices = False, IMAGES
    load, pack = loader.dataset.pipeline[:2], loader.dataset.pipeline[-1]
    loader.dataset.pipeline = [*load, dict(type='Resize', scale=size, keep_ratio=False), pack]
    config.val_dataloader.dataset.indices = 2
    # Adam divides by the gradient's size, and makes a step of rounding errors where it is zero.
    optimizer = dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.05)
    config.optim_wrapper = dict(type='OptimWrapper', optimizer=optimizer, accumulative_counts=counts)
    config.param_scheduler = []
    config.train_cfg.update(max_iters=steps * counts, val_interval=STEPS)
    # The first validation is the best so far.
    config.default_hooks.checkpoint.update(interval=STEPS, save_best='mIoU')
    if counts == 1:  # an average over steps, not over iterations
        config.custom_hooks.append(dict(type='bioattn_mm.ShardableEMAHook', momentum=0.1))
    config.work_dir = '.'
    return config


def checkpoint_of(workplace: Path, processes: int, counts: int, starts: tuple[int, ...], sharded: bool) -> Path:
    """The last checkpoint of a run that is started several times, each time for so many steps in all."""
    folder = workplace / f'{processes}_{counts}_{sharded}'
    folder.mkdir()
    (folder / 'data').symlink_to(workplace / 'data')
    for steps in starts:
        config = comparable(steps, processes, counts)
        codes = run_ranks(toy_train, config, sharded, folder=folder, world_size=processes)
        assert codes == [0] * processes, reasons(folder)
    assert not list(folder.glob('.*.part'))
    return folder / f'iter_{steps * counts}.pth'


@pytest.fixture(scope='module')
def single(workplace: Path) -> Path:
    """The checkpoint of one process that is started once."""
    return checkpoint_of(workplace, 1, 1, (2 * STEPS,), sharded=False)


@pytest.mark.slow
@pytest.mark.parametrize(('counts', 'sharded'), [(1, False), (1, True), (2, True)])
def test_two_processes_with_half_the_batch(workplace: Path, single: Path, counts: int, sharded: bool) -> None:
    checkpoint = checkpoint_of(workplace, 2, counts, (STEPS, 2 * STEPS), sharded)
    # Sums in another order; a wrong average of the gradients changes a weight by a thousandth in these steps.
    if counts == 1:
        assert largest_difference(checkpoint, single) < 3e-5
        assert largest_difference(checkpoint, single, 'ema_state_dict') < 3e-5
    else:
        weights, expected = read_checkpoint(str(checkpoint))['state_dict'], read_checkpoint(str(single))
        for name, value in weights.items():
            torch.testing.assert_close(value, expected['ema_state_dict'][f'module.{name}'], rtol=0, atol=3e-5)


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


@pytest.mark.parametrize(('processes', 'sharded'), [(4, True), (1, False)])
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
        written = write(writer, *args)
        if os.environ['RANK'] == '1' and Path('step_4').exists():
            end = time.monotonic() + 30
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
