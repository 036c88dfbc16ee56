"""What a run removes is its own, what it goes on from is whole, it is alone in its folder, and may be interrupted."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from mmengine.fileio import LocalBackend, get_file_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from bioattn_mm.errors import InputError
from bioattn_mm.training.checkpoints import SIGNALS, AtomicCheckpointHook, latest_checkpoint
from bioattn_mm.training.start import LOCK, locked, set_resume

from .ranks import exit_codes, run_ranks
from .toy_run import ToyModel, assert_same, run, toy_config, toy_train, validated


def score(value: float) -> Callable[[Runner], None]:
    return validated(CheckpointHook, mIoU=value)


def told(*numbers: signal.Signals) -> Callable[[Runner], None]:
    """A function that sends this process signals."""
    return lambda _: [os.kill(os.getpid(), number) for number in numbers]


def names(folder: Path | str) -> str:
    """The checkpoints of a folder, without suffix."""
    return ' '.join(sorted(path.stem for path in Path(folder).glob('*.pth')))


def test_checkpoints_of_another_run_stay(place: Path) -> None:
    run('A', 4, {3: score(0.5)})
    run('B', 8, {5: score(0.7), 7: score(0.8)}, resume='A/iter_4.pth')
    assert names('B') == 'best_mIoU_iter_6 iter_6 iter_8'  # the better one superseded its own
    shutil.copytree('A', 'C')  # whose last_checkpoint names the one in A
    run('C', 6, resume='auto')
    assert names('A') == 'best_mIoU_iter_2 iter_2 iter_4' and 'iter_6' in names('C')
    assert Path('C/last_checkpoint').read_text() == str(place / 'C/iter_6.pth')
    # With the seed that the first run drew.
    config = toy_config(8, 1)
    config.update(work_dir='C', randomness=dict(seed=None))
    set_resume(config, 'auto', ToyModel().state_dict())
    assert config.randomness.seed == torch.load('C/iter_6.pth', weights_only=False)['meta']['seed'] is not None


def test_checkpoints_of_signals_do_not_pile_up(place: Path) -> None:
    """Where a number of checkpoints is kept, that of a signal goes when a newer one is whole."""
    for at, resume, interval, left in (
        (3, None, 2, 'iter_2 iter_3'),
        (5, 'auto', 2, 'iter_4 iter_5'),
        # The signal comes before the interval; what the interval has saved in the step of a signal stays.
        (7, 'A/iter_5.pth', 4, 'iter_4 iter_7'),
        (8, 'auto', 4, 'iter_8'),
    ):
        with pytest.raises(SystemExit):
            run('A', 20, {at: told(signal.SIGTERM)}, resume, max_keep_ckpts=1, interval=interval)
        assert names('A') == left
    run('A', 9, resume='auto', max_keep_ckpts=2, interval=9)
    assert names('A') == 'iter_8 iter_9'


def test_what_is_own(place: Path) -> None:
    hook = AtomicCheckpointHook(by_epoch=False, max_keep_ckpts=1)
    hook.out_dir, hook.file_backend = str(place), LocalBackend()
    own = 'iter_3.pth best_coco_bbox_mAP_iter_3.pth .iter_3.pth.part .older_iter_3.pth.part .last_checkpoint.part'
    others = 'epoch_1.pth notes.txt model.pth iter_x.pth .film.mkv.part last_checkpoint'
    for name in f'{own} {others}'.split():
        (place / name).write_text('x')
    (place / 'iter_4.pth').mkdir()  # no checkpoint
    (place / 'iter_5.pth').symlink_to(place / 'notes.txt')
    assert {path.name for path in place.iterdir() if hook.is_own(path)} == set(own.split())
    (place / 'other').mkdir()
    (place / 'other/iter_3.pth').write_text('x')
    for named in ('other/iter_3.pth', 'other/../other', 'iter_3.pth/iter_3.pth', 'iter_9.pth'):
        assert not hook.is_own(place / named)
    assert hook.is_own(place / 'other/../iter_3.pth')


def test_what_is_not_resumed_from(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run('A', 4, {3: score(0.5)})
    with pytest.raises(InputError, match='^A/best_mIoU_iter_2.pth holds weights but no state of a training'):
        run('B', 6, resume='A/best_mIoU_iter_2.pth')
    assert not Path('B').exists()

    run('B', 2)
    before = Path('B/iter_2.pth').read_bytes()
    with pytest.raises(InputError, match='^B already holds iter_2.pth, which the training from A/iter_4.pth would'):
        run('B', 6, resume='A/iter_4.pth')
    assert Path('B/iter_2.pth').read_bytes() == before and names('B') == 'iter_2'

    # A fresh start from the config of a work dir whose training was resumed.
    config = toy_config(4, 1, 2)
    config.update(work_dir='C', load_from='A/iter_4.pth', resume=True)
    for resume in (None, 'auto'):
        set_resume(config, resume, ToyModel().state_dict())
        assert (config.load_from, config.resume) == (None, False)

    config.update(work_dir='B', own_data=['2 classes'])
    monkeypatch.setattr('bioattn_mm.training.start.check_classes', Mock(side_effect=InputError('other classes')))
    with pytest.raises(InputError, match='other classes'):
        set_resume(config, 'auto', ToyModel().state_dict())


@contextmanager
def child(context: object) -> Iterator[int]:
    """A process that is in a context until it is killed, and its number."""
    read, write = os.pipe()
    if not (number := os.fork()):
        with context:
            os.write(write, b'x')
            signal.pause()
    os.read(read, 1)
    yield number
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)


def test_one_training_in_a_folder(place: Path) -> None:
    with child(locked('A')) as number, locked('B'):
        with pytest.raises(InputError, match=f'^A is being trained in by process {number} '), locked('A'):
            pass
    with ExitStack() as stack:
        with locked('A'):  # the lock of a process that was killed is gone
            assert Path('A', LOCK).read_text().startswith(f'process {os.getpid()} ')
            stack.enter_context(child(nullcontext()))
        stack.enter_context(child(locked('A')))  # a worker, which may outlive its parent by seconds, does not hold it


@pytest.mark.parametrize('number', SIGNALS)
def test_a_signal_saves_a_checkpoint(number: signal.Signals, place: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        run('A', 9, {3: told(number)})
    assert ended.value.code == 128 + number
    assert names('A') == 'iter_2 iter_3'
    *_, last, summary = map(json.loads, Path('A/steps.jsonl').read_text().splitlines())
    # The step that the checkpoint is of, too.
    assert last['step'] == summary['step'] == 3 and summary['summary']['ended'] == number.name
    run('A', 4, resume='auto')
    assert 'iter_4' in names('A')


def test_a_second_interrupt_ends_at_once_and_a_signal_that_is_ignored_does_nothing(place: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run('A', 9, {3: told(signal.SIGINT, signal.SIGINT)})
    assert names('A') == 'iter_2'
    # What was replaced is put back.
    assert signal.getsignal(signal.SIGINT) == handler and type(get_file_backend('A')) is LocalBackend
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does it
    run('A', 6, {3: told(signal.SIGHUP)}, resume='auto')
    assert names('A') == 'iter_2 iter_4 iter_6'


@pytest.mark.parametrize(
    ('by_epoch', 'name', 'left', 'last'),
    [
        (False, 'SIGXFSZ', ['.iter_6.pth.part', 'iter_3.pth'], 'iter_8.pth'),
        (True, 'SIGTERM', ['epoch_1.pth', 'iter_6.pth'], 'epoch_2.pth'),
    ],
)
def test_goes_on_to_the_same_weights(by_epoch: bool, name: str, left: list[str], last: str, tmp_path: Path) -> None:
    number, whole = signal.Signals[name], tmp_path / 'whole'
    # With one checkpoint to keep, the old one must outlive the writing of the new one.
    config = toy_config(8, 1, interval=3, max_keep_ckpts=1)
    if by_epoch:  # of four steps
        config.train_cfg = dict(type='bioattn_mm.ResumableEpochBasedTrainLoop', max_epochs=2)
        config.train_dataloader.sampler.type = 'DefaultSampler'
        config.default_hooks.checkpoint.update(by_epoch=True, interval=1)
    whole.mkdir()
    run_ranks(toy_train, config, False, folder=whole)
    config.custom_hooks.append(dict(type='SignalHook', name=name, after=6))
    code = 128 + number if number in SIGNALS else -number
    assert exit_codes(toy_train, config, False, folder=tmp_path) == [code]
    assert sorted(path.name for pattern in ('*.pth', '.*.part') for path in tmp_path.glob(pattern)) == left
    config.custom_hooks.pop()
    run_ranks(toy_train, config, False, folder=tmp_path)
    assert not list(tmp_path.glob('.*.part'))
    assert_same(tmp_path / last, whole / last)


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
