"""The lines that a training writes for machines, and the summary of its health, however it ends."""

import json
import re
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.hooks import LoggerHook
from mmengine.runner import Runner

from bioattn_mm.errors import InputError
from bioattn_mm.training.health import health, health_table
from bioattn_mm.training.step_log import StepLogHook

from ..tools.running import scalars
from .toy_run import IMAGES, ToyImages, ToyModel, run, validated

pytestmark = pytest.mark.usefixtures('place')


def lines_of(kind: str) -> list[dict]:
    """Those of the run in A, without NaN and Infinity, which are no JSON."""
    lines = [json.loads(row, parse_constant=int) for row in Path('A/steps.jsonl').open()]
    return [line if kind == 'iter' else line[kind] for line in lines if kind in line]


def steps() -> list[int]:
    return [line['step'] for line in lines_of('iter')]


def warnings() -> list[str]:
    """What the log of the run in A warns of."""
    (log,) = Path('A').glob('*/*.log')
    return re.findall(r' - WARNING - (\w+ is (?:nan|inf) .*)', log.read_text())


def test_a_line_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading takes long in step 4, computing in step 5, a hook in step 6, and before step 3 a validation."""
    read, log, images = ToyImages.__getitem__, LoggerHook.after_train_iter, count()

    def read_slowly(dataset: ToyImages, index: int) -> dict:
        time.sleep(0.5 * (next(images) == 3 * IMAGES))
        return read(dataset, index)

    def log_slowly(hook: LoggerHook, runner: Runner, *args: object, **kwargs: object) -> None:
        time.sleep(0.5 * (runner.iter + 1 == 6))
        log(hook, runner, *args, **kwargs)

    def validate(runner: Runner) -> None:
        time.sleep(0.5)
        runner.call_hook('after_val')
        # In NumPy's float32, which JSON does not take.
        validated(StepLogHook, mIoU=np.float32(12.5), names=['wall'], aAcc=float('nan'))(runner)

    monkeypatch.setattr(ToyImages, '__getitem__', read_slowly)
    monkeypatch.setattr(LoggerHook, 'after_train_iter', log_slowly)
    run('A', 6, {3: validate, 5: lambda _: time.sleep(0.5)})
    lines = lines_of('iter')
    assert steps() == [line['iter'] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line['epoch'] for line in lines] == [1, 1, 1, 1, 2, 2]  # four steps of four images
    # mmengine logs means over several steps.
    logged = [line for line in scalars(Path('A')) if 'loss' in line]
    losses = np.array([line['loss'] for line in lines])
    assert [line['loss'] for line in logged] == pytest.approx(losses.cumsum() / np.arange(1, 7))
    assert [line['lr'] for line in logged] == pytest.approx([line['lr'] for line in lines])
    are_long = [[line[key] > 0.4 for key in ('time', 'data_time', 'hook_time')] for line in lines[2:]]
    assert are_long == [[False] * 3, [True, True, False], [True, False, False], [True, False, True]]
    for line in lines:
        # The validation of step 3 comes after its data, unlike a real one, and starts the time anew.
        assert line['step'] == 3 or line['time'] >= line['data_time'] + line['hook_time'] - 2e-6 > 0
        assert line['images_per_second'] == pytest.approx(IMAGES / line['time'], rel=0.01)
        assert line['memory'] > 100
    (row,) = [row for row in Path('A/steps.jsonl').open() if 'mIoU' in row]
    assert json.loads(row) == dict(mIoU=12.5, aAcc=None, step=2)
    (warning,) = warnings()
    assert warning.startswith('aAcc is nan of the validation after step 2')
    (start,), (summary,) = lines_of('start'), lines_of('summary')
    assert not start['resumed'] and start['processes'] == 1
    assert summary['ended'] == 'finished' and summary['steps'] == 6


def test_a_run_that_fails_and_is_resumed() -> None:
    def fail(_: Runner) -> None:
        raise RuntimeError('first line\n[/x.cc:78] out of memory')

    with pytest.raises(RuntimeError, match='out of memory'):
        run('A', 8, {6: fail})
    assert steps() == [1, 2, 3, 4, 5]
    # Killed later, and the disk lost some: the last lines are damaged or cut off.
    with Path('A/steps.jsonl').open('ab') as file:
        file.write(b'3\n{}\n\xff\xfe\n' + bytes(9) + b'\n{"step": 6, "it')
    run('A', 8, resume='A/iter_4.pth')
    assert steps() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [start['resumed'] for start in lines_of('start')] == [False, True]
    found = [(one['ended'], one['starts'], one['resumed']) for one in lines_of('summary')]
    assert found == [('RuntimeError: [/x.cc:78] out of memory', 1, 0), ('finished', 2, 1)]


def test_losses_and_weights_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are said at the first step of several, and the checkpoints before stay; a mask of attention is none."""
    forward, passes, mask = ToyModel.forward, count(1), torch.full((3, 3), -torch.inf).triu(1)

    def fail(model: ToyModel, inputs: torch.Tensor, mode: str) -> dict:
        step = next(passes)
        losses = forward(model, inputs * (float('nan') if step > 4 else 1), mode)
        return dict(loss=losses['loss'] + (torch.inf if step == 2 else 0))  # whose gradient is finite

    monkeypatch.setattr(ToyModel, 'forward', fail)
    want = '^after step 6 weights are NaN or infinite .*: go on from one with --resume'
    with pytest.raises(InputError, match=want):
        run('A', 10, {1: lambda runner: runner.model.register_buffer('mask', mask)}, max_keep_ckpts=1)
    assert [warning.partition(':')[0] for warning in warnings()] == ['loss is inf at step 2', 'loss is nan at step 5']
    assert [line['step'] for line in lines_of('iter') if line['loss'] is None] == [2, 5, 6]
    assert lines_of('summary')[0]['nonfinite'] == dict(count=3, first=[2, 5, 6])
    (checkpoint,) = Path('A').glob('*.pth')
    weights = torch.load(checkpoint, weights_only=False)['state_dict']
    assert checkpoint.name == 'iter_4.pth' and torch.equal(weights.pop('mask'), mask)
    assert all(value.isfinite().all() for value in weights.values())


def line(step: int, **values: object) -> dict:
    times = dict(time=1.0, data_time=0.125, hook_time=0.0, images_per_second=4.0, memory=100, loss=1.0)
    return dict(times, step=step, iter=step) | values


def test_health_of_several_starts_of_none_and_of_many_bad_steps() -> None:
    lines = [
        dict(step=0, start=dict(resumed=False)),
        line(1, time=60.0),  # the first step of a start is no stall
        *(line(step) for step in range(2, 10)),
        line(10, time=9.0, data_time=8.0),
        dict(step=10, start=dict(resumed=True)),
        line(11, time=60.0),
        line(12, memory=200, **{'decode.loss_ce': None}),
        dict(step=12, mIoU=10.0),
        line(13, time=5.0, hook_time=2.4),  # computing takes longer, but hooks grew most
    ]
    summary = health(lines)
    assert (summary['steps'], summary['starts'], summary['resumed']) == (13, 2, 1)
    assert summary['step_time'] == 1 and summary['images_per_second'] == 4
    assert summary['data_share'] == pytest.approx((8 * 0.125 + 8 + 2 * 0.125) / 23)
    assert summary['stalls']['count'] == 2 and summary['stalls']['seconds'] == 12
    assert [(stall['step'], stall['part']) for stall in summary['stalls']['longest']] == [(10, 'data'), (13, 'hooks')]
    assert summary['nonfinite'] == dict(count=1, first=[12]) and summary['peak_memory'] == 200
    text = health_table(dict(summary, ended='finished'))
    assert 'step 10 (9 s, data), step 13 (5 s, hooks)' in text
    assert '2, 1 of them from a checkpoint' in text

    summary = health([dict(step=0, start=dict(resumed=False))])
    assert summary['steps'] == 0 and summary['step_time'] is None and summary['peak_memory'] is None
    assert summary['stalls'] == dict(count=0, seconds=0.0, longest=[])
    lines = [line(step, loss=None, time=9.0 if step % 4 == 0 else 1.0) for step in range(1, 30)]
    summary = health(lines)
    assert summary['nonfinite'] == dict(count=29, first=[1, 2, 3, 4, 5])
    assert summary['stalls']['count'] == 7 and len(summary['stalls']['longest']) == 5
