"""What a run removes is its own, what it goes on from is whole, and it is alone in its folder."""

import json
import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import LocalBackend, get_file_backend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from bioattn_mm.checkpoints import mmengine_reads_all
from bioattn_mm.cli.command_line import run_tool
from bioattn_mm.errors import InputError
from bioattn_mm.training.checkpoints import SIGNALS, AtomicCheckpointHook
from bioattn_mm.training.runner import build_runner, failures_in_one_line
from bioattn_mm.training.start import LOCK, locked, set_resume
from bioattn_mm.training.step_log import StepLogHook, summarised

from ..tools.running import forget_runs
from .toy_run import ToyModel, toy_config


@HOOKS.register_module()
class AtStepHook(Hook):
    """Calls functions before steps."""

    def __init__(self, functions: dict) -> None:
        self.functions = functions

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        self.functions.get(runner.iter + 1, lambda _: None)(runner)


def score(value: float):
    """A function that lets a validation give a metric."""

    def validated(runner: Runner) -> None:
        hook = next(hook for hook in runner.hooks if isinstance(hook, CheckpointHook))
        hook.after_val_epoch(runner, dict(mIoU=value))

    return validated


def run(folder: str, steps: int, functions: dict | None = None, resume: str | None = None, **checkpoint) -> Runner:
    """Train in a folder of the working directory, as tools/train.py does."""
    config = toy_config(steps, 1, **dict(interval=2, save_best='mIoU', rule='greater') | checkpoint)
    config.update(work_dir=folder, launcher='none')
    forget_runs()
    set_resume(config, resume, ToyModel().state_dict())
    with mmengine_reads_all(), failures_in_one_line(config) as hook:
        runner = build_runner(config)
        runner.register_hook(hook)
        runner.register_hook(AtStepHook(functions or {}))
        with summarised(runner):
            runner.train()
    return runner


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    # A shell lets what it starts in the background ignore some.
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)


def names(folder: Path | str) -> set[str]:
    return {path.name for path in Path(folder).glob('*.pth')}


def test_the_best_of_another_run_stays(place: Path) -> None:
    run('A', 4, {3: score(0.5)})
    assert names('A') == {'iter_2.pth', 'iter_4.pth', 'best_mIoU_iter_2.pth'}
    run('B', 8, {5: score(0.7), 7: score(0.8)}, resume='A/iter_4.pth')
    assert names('A') == {'iter_2.pth', 'iter_4.pth', 'best_mIoU_iter_2.pth'}
    assert names('B') == {'iter_6.pth', 'iter_8.pth', 'best_mIoU_iter_6.pth'}  # the better one superseded its own


def ended(runner: Runner) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_checkpoints_of_signals_do_not_pile_up(place: Path) -> None:
    """Where a number of checkpoints is kept, that of a signal goes when a newer one is whole."""
    for at, resume, left in ((3, None, {'iter_2.pth', 'iter_3.pth'}), (5, 'auto', {'iter_4.pth', 'iter_5.pth'})):
        with pytest.raises(SystemExit):
            run('A', 20, {at: ended}, resume, max_keep_ckpts=1)
        assert names('A') == left
    # The second signal comes before the interval; what the interval has saved in the step of a signal stays.
    with pytest.raises(SystemExit):
        run('A', 20, {7: ended}, 'A/iter_5.pth', max_keep_ckpts=1, interval=4)
    assert names('A') == {'iter_4.pth', 'iter_7.pth'}
    with pytest.raises(SystemExit):
        run('A', 20, {8: ended}, 'auto', max_keep_ckpts=1, interval=4)
    assert names('A') == {'iter_8.pth'}
    run('A', 9, resume='auto', max_keep_ckpts=2, interval=9)
    assert names('A') == {'iter_8.pth', 'iter_9.pth'}


@pytest.mark.parametrize('named', ['victim', 'victim/notes.txt', 'A/data', 'A/../victim', 'A/best_mIoU_iter_1.pth/x'])
def test_a_checkpoint_that_names_other_things_removes_none(place: Path, named: str) -> None:
    run('A', 2)
    for folder in ('victim', 'A/data'):
        Path(folder).mkdir()
        Path(folder, 'notes.txt').write_text('kept')
    checkpoint = torch.load('A/iter_2.pth', weights_only=False)
    checkpoint['message_hub']['runtime_info'].update(best_ckpt=str(place / named), best_score=-1)
    checkpoint['message_hub']['resumed_keys'].update(best_ckpt=True, best_score=True)
    torch.save(checkpoint, 'A/iter_2.pth')
    run('A', 4, {3: score(0.5)}, resume='A/iter_2.pth')
    assert all(Path(folder, 'notes.txt').read_text() == 'kept' for folder in ('victim', 'A/data'))
    assert 'best_mIoU_iter_2.pth' in names('A')


def test_what_is_own(place: Path) -> None:
    hook = AtomicCheckpointHook(by_epoch=False, max_keep_ckpts=1)
    hook.out_dir, hook.file_backend = str(place), LocalBackend()
    own = 'iter_3.pth best_coco_bbox_mAP_iter_3.pth .iter_3.pth.part .older_iter_3.pth.part .last_checkpoint.part'
    others = 'epoch_1.pth notes.txt model.pth iter_x.pth .film.mkv.part'
    for name in f'{own} {others}'.split():
        (place / name).write_text('x')
    (place / 'iter_4.pth').mkdir()  # no checkpoint
    (place / 'iter_5.pth').symlink_to(place / 'notes.txt')
    assert {path.name for path in place.iterdir() if hook.is_own(path)} == set(own.split())
    (place / 'other').mkdir()
    (place / 'other/iter_3.pth').write_text('x')
    assert not hook.is_own(place / 'other/iter_3.pth')
    assert hook.is_own(place / 'other/../iter_3.pth')


def test_a_partial_file_of_somebody_else_stays(place: Path) -> None:
    run('A', 2)
    Path('A/.film.mkv.part').write_text('downloading')
    Path('A/.iter_3.pth.part').write_text('killed')
    run('A', 4, resume='auto')
    assert Path('A/.film.mkv.part').exists() and not Path('A/.iter_3.pth.part').exists()


def test_weights_alone_are_not_resumed_from(place: Path) -> None:
    run('A', 4, {3: score(0.5)})
    with pytest.raises(
        InputError, match=r'^A/best_mIoU_iter_2.pth holds weights but no state of a training .it lacks'
    ):
        run('B', 6, resume='A/best_mIoU_iter_2.pth')
    assert not Path('B').exists()


def test_a_training_on_other_classes_is_not_resumed_from(place: Path) -> None:
    run('A', 2)
    checkpoint = torch.load('A/iter_2.pth', weights_only=False)
    checkpoint['meta']['dataset_meta'] = dict(classes=('cat', 'dog'))
    torch.save(checkpoint, 'A/iter_2.pth')
    config = toy_config(4, 1, 2)
    dataset = dict(type='Toy', metainfo=dict(classes=('bolt', 'nut')))
    config.update(work_dir='A', own_data=['2 classes'], test_dataloader=dict(dataset=dataset))
    with pytest.raises(InputError, match='was trained on the classes cat, dog, the data have bolt, nut'):
        set_resume(config, 'auto', ToyModel().state_dict())


def test_a_run_is_not_continued_into_the_checkpoints_of_another(place: Path) -> None:
    run('A', 4)
    run('B', 2)
    before = Path('B/iter_2.pth').read_bytes()
    with pytest.raises(
        InputError, match=r'^B already holds iter_2.pth, which the training from A/iter_4.pth would not'
    ):
        run('B', 6, resume='A/iter_4.pth')
    assert Path('B/iter_2.pth').read_bytes() == before and names('B') == {'iter_2.pth'}


def test_a_copied_folder_goes_on_from_its_own(place: Path) -> None:
    run('A', 4)
    Path('B').mkdir()
    for name in ('iter_2.pth', 'iter_4.pth', 'last_checkpoint'):
        Path('B', name).write_bytes(Path('A', name).read_bytes())
    run('B', 6, resume='auto')
    assert names('A') == {'iter_2.pth', 'iter_4.pth'} and 'iter_6.pth' in names('B')
    assert Path('B/last_checkpoint').read_text() == str(place / 'B/iter_6.pth')
    # With the seed that the first run drew.
    config = toy_config(8, 1)
    config.update(work_dir='B', randomness=dict(seed=None))
    set_resume(config, 'auto', ToyModel().state_dict())
    assert config.randomness.seed == torch.load('B/iter_6.pth', weights_only=False)['meta']['seed'] is not None


def held_by_a_child(folder: str) -> int:
    """Start a process that holds the lock of a folder; return its number."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with locked(folder):
            os.write(write, b'x')
            signal.pause()
    os.read(read, 1)
    return child


def test_one_training_in_a_folder(place: Path) -> None:
    child = held_by_a_child('A')
    try:
        with pytest.raises(InputError, match=rf'^A is being trained in by process {child} on .*: wait for its end'):
            with locked('A'):
                pass
        with locked('B'):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with locked('A'):  # the lock of a process that was killed is gone
        assert Path('A', LOCK).read_text().startswith(f'process {os.getpid()} ')
        child = os.fork()  # a worker, which may outlive its parent by seconds, does not hold it
        if child == 0:
            signal.pause()
    try:
        other = held_by_a_child('A')
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize('number', SIGNALS)
def test_a_signal_saves_a_checkpoint(number: signal.Signals, place: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        run('A', 9, {3: lambda _: os.kill(os.getpid(), number)})
    assert ended.value.code == 128 + number
    assert names('A') == {'iter_2.pth', 'iter_3.pth'}
    *_, last, summary = map(json.loads, Path('A/steps.jsonl').read_text().splitlines())
    # The step that the checkpoint is of, too.
    assert last['step'] == summary['step'] == 3 and summary['summary']['ended'] == number.name
    run('A', 4, resume='auto')
    assert 'iter_4.pth' in names('A')


def test_a_second_interrupt_ends_at_once(place: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run('A', 9, {3: lambda _: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]})
    assert names('A') == {'iter_2.pth'}


def test_a_signal_that_is_ignored_stays_so(place: Path) -> None:
    """As nohup does it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run('A', 4, {3: lambda _: os.kill(os.getpid(), signal.SIGHUP)})
    finally:
        signal.signal(signal.SIGHUP, before)
    assert names('A') == {'iter_2.pth', 'iter_4.pth'}


def test_a_tool_that_is_interrupted(capsys: pytest.CaptureFixture) -> None:
    @run_tool
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130 and capsys.readouterr().err == 'interrupted\n'


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the log of the steps warns of."""
    found: list[str] = []

    def note(text: str, logger: str, level: int = logging.INFO) -> None:
        found.extend([text] * (level == logging.WARNING))

    monkeypatch.setattr('bioattn_mm.training.step_log.print_log', note)
    return found


def test_losses_and_weights_that_are_nan(place: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> None:
    """They are said at the first step, and the checkpoints before stay."""
    forward = ToyModel.forward
    steps = iter(range(1, 99))
    monkeypatch.setattr(
        ToyModel, 'forward',
        lambda model, inputs, mode: forward(model, inputs * (float('nan') if next(steps) > 4 else 1), mode),
    )  # fmt: skip
    with pytest.raises(
        InputError, match=r'^after step 6 weights are NaN or infinite .*: go on from one with --resume'
    ):
        run('A', 10, max_keep_ckpts=1)
    (warning,) = warnings
    assert warning.startswith('loss is nan at step 5: ')
    assert names('A') == {'iter_4.pth'}
    assert all(
        value.isfinite().all() for value in torch.load('A/iter_4.pth', weights_only=False)['state_dict'].values()
    )


def test_a_mask_of_attention_is_saved(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros and negative infinity are no weights of a training that has failed."""
    init = ToyModel.__init__

    def with_mask(model: ToyModel) -> None:
        init(model)
        model.register_buffer('mask', torch.full((3, 3), -torch.inf).triu(1))

    monkeypatch.setattr(ToyModel, '__init__', with_mask)
    run('A', 2)
    assert 'iter_2.pth' in names('A')


def test_a_metric_that_is_nan(place: Path, warnings: list[str]) -> None:
    def validated(runner: Runner) -> None:
        next(hook for hook in runner.hooks if isinstance(hook, StepLogHook)).after_val_epoch(
            runner, dict(mIoU=float('nan'), aAcc=3.0)
        )

    run('A', 2, {1: validated})
    (warning,) = warnings
    assert re.match('mIoU is nan .* after step 0: there was nothing to compare with', warning)


BAD_CONFIGS = {
    'optimizer': (dict(optim_wrapper=dict(type='NoWrapper')), 'the run would fail: KeyError: NoWrapper '),
    'loop': (
        dict(train_cfg=dict(max_updates=3), log_level='DEBUG'),
        "the run would fail: TypeError: .*argument 'max_updates'",
    ),
    'loader': (dict(train_dataloader=dict(batchsize=3)), "the run would fail: TypeError: .*'batchsize'"),
    'data': (dict(train_dataloader=dict(dataset=dict(root='x'))), 'the run .*: TypeError: ToyImages.. takes no '),
    'hook': (dict(custom_hooks=[dict(type='NoHook')]), 'the run would fail: KeyError: NoHook '),
    'betas': (dict(optim_wrapper=dict(optimizer=dict(betas=(2, 3)))), 'the run would fail: ValueError: .*beta'),
    'a batch of one': (
        dict(train_dataloader=dict(batch_size=1)),
        'batch normalisation cannot train with a single value per channel.*batch_size=1',
    ),
}


@pytest.mark.parametrize(('change', 'message'), BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_config_that_cannot_train(change: dict, message: str, place: Path, capsys: pytest.CaptureFixture) -> None:
    config = toy_config(2, 1)
    config.launcher = 'none'
    forget_runs()
    config = Config(Config._merge_a_into_b(change, config.to_dict(), allow_list_keys=True))
    with pytest.raises(InputError) as error, failures_in_one_line(config) as hook:
        runner = build_runner(config)
        runner.register_hook(hook)
        runner.train()
    assert re.match(message, str(error.value)) and '\n' not in str(error.value)
    assert ('Traceback' in capsys.readouterr().err) == (config.log_level == 'DEBUG')


def test_a_failure_in_the_middle_keeps_its_traceback_and_what_was_replaced_is_put_back(place: Path) -> None:
    handler, during = signal.getsignal(signal.SIGTERM), []

    def fail(_: Runner) -> None:
        during.append(signal.getsignal(signal.SIGTERM))
        raise KeyError('a bug')

    with pytest.raises(KeyError, match='a bug'):
        run('A', 4, {3: fail})
    assert during[0] != handler and signal.getsignal(signal.SIGTERM) == handler
    assert names('A') == {'iter_2.pth'} and type(get_file_backend('A')) is LocalBackend
