"""What a run removes is its own, what it goes on from is whole, and it is alone in its folder."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from mmengine.fileio import LocalBackend, get_file_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from bioattn_mm.errors import InputError
from bioattn_mm.training.checkpoints import SIGNALS, AtomicCheckpointHook
from bioattn_mm.training.start import LOCK, locked, set_resume

from .toy_run import ToyModel, run, toy_config, validated


def score(value: float) -> Callable[[Runner], None]:
    return validated(CheckpointHook, mIoU=value)


def told(*numbers: signal.Signals) -> Callable[[Runner], None]:
    """A function that sends this process signals."""
    return lambda _: [os.kill(os.getpid(), number) for number in numbers]


def names(folder: Path | str) -> str:
    """The checkpoints of a folder, without suffix."""
    return ' '.join(sorted(path.stem for path in Path(folder).glob('*.pth')))


def test_the_best_of_another_run_stays(place: Path) -> None:
    run('A', 4, {3: score(0.5)})
    assert names('A') == 'best_mIoU_iter_2 iter_2 iter_4'
    run('B', 8, {5: score(0.7), 7: score(0.8)}, resume='A/iter_4.pth')
    assert names('A') == 'best_mIoU_iter_2 iter_2 iter_4'
    assert names('B') == 'best_mIoU_iter_6 iter_6 iter_8'  # the better one superseded its own


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


def test_what_is_not_resumed_from(place: Path) -> None:
    run('A', 4, {3: score(0.5)})
    with pytest.raises(InputError, match='^A/best_mIoU_iter_2.pth holds weights but no state of a training'):
        run('B', 6, resume='A/best_mIoU_iter_2.pth')
    assert not Path('B').exists()

    run('B', 2)
    before = Path('B/iter_2.pth').read_bytes()
    with pytest.raises(InputError, match='^B already holds iter_2.pth, which the training from A/iter_4.pth would'):
        run('B', 6, resume='A/iter_4.pth')
    assert Path('B/iter_2.pth').read_bytes() == before and names('B') == 'iter_2'

    checkpoint = torch.load('B/iter_2.pth', weights_only=False)
    checkpoint['meta'].update(dataset_meta=dict(classes=('cat', 'dog')))
    torch.save(checkpoint, 'B/iter_2.pth')
    config = toy_config(4, 1, 2)
    dataset = dict(type='Toy', metainfo=dict(classes=('bolt', 'nut')))
    config.update(work_dir='B', own_data=['2 classes'], test_dataloader=dict(dataset=dataset))
    with pytest.raises(InputError, match='was trained on the classes cat, dog, the data have bolt, nut'):
        set_resume(config, 'auto', ToyModel().state_dict())


def test_a_copied_folder_goes_on_from_its_own(place: Path) -> None:
    run('A', 4)
    Path('B').mkdir()
    for name in ('iter_2.pth', 'iter_4.pth', 'last_checkpoint'):
        Path('B', name).write_bytes(Path('A', name).read_bytes())
    run('B', 6, resume='auto')
    assert names('A') == 'iter_2 iter_4' and 'iter_6' in names('B')
    assert Path('B/last_checkpoint').read_text() == str(place / 'B/iter_6.pth')
    # With the seed that the first run drew.
    config = toy_config(8, 1)
    config.update(work_dir='B', randomness=dict(seed=None))
    set_resume(config, 'auto', ToyModel().state_dict())
    assert config.randomness.seed == torch.load('B/iter_6.pth', weights_only=False)['meta']['seed'] is not None


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
    with pytest.raises(KeyboardInterrupt):
        run('A', 9, {3: told(signal.SIGINT, signal.SIGINT)})
    assert names('A') == 'iter_2'
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does it
    run('A', 6, {3: told(signal.SIGHUP)}, resume='auto')
    assert names('A') == 'iter_2 iter_4 iter_6'


def test_a_mask_of_attention_is_saved(place: Path) -> None:
    """Zeros and negative infinity are no weights of a training that has failed."""
    mask = torch.full((3, 3), -torch.inf).triu(1)
    run('A', 2, {1: lambda runner: runner.model.register_buffer('mask', mask)})
    assert torch.equal(torch.load('A/iter_2.pth', weights_only=False)['state_dict']['mask'], mask)


def test_a_failure_in_the_middle_keeps_its_traceback_and_what_was_replaced_is_put_back(place: Path) -> None:
    handler, during = signal.getsignal(signal.SIGTERM), []

    def fail(_: Runner) -> None:
        during.append(signal.getsignal(signal.SIGTERM))
        raise KeyError('a bug')

    with pytest.raises(KeyError, match='a bug'):
        run('A', 4, {3: fail})
    assert during[0] != handler and signal.getsignal(signal.SIGTERM) == handler
    assert names('A') == 'iter_2' and type(get_file_backend('A')) is LocalBackend
