"""The lines that a training writes for machines, and the summary of its health, however it ends."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn

from bioattn_mm.training.health import health, health_table
from bioattn_mm.training.step_log import summarised

from ..tools.running import scalars

BATCH, NUM_IMAGES = 2, 6


class ToyModel(BaseModel):
    """A model of one weight, whose forward passes do what `at` says, by the number of the pass."""

    def __init__(self, at: dict | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.norm = nn.Identity()
        self.at = at or {}
        self.passes = 0

    def forward(self, inputs: list, mode: str) -> dict | list:
        if mode == 'predict':
            return [{}]
        self.passes += 1
        result = self.at.get(self.passes, lambda: 1)()
        self.norm(torch.arange(4.0).view(2, 2))
        return dict(loss=self.weight.sum() + result - 1)  # whose gradient is 1, whatever the result


def loader(dataset: list) -> dict:
    return dict(dataset=dataset, sampler=dict(type='InfiniteSampler', shuffle=False), batch_size=BATCH)


def toy_runner(folder: Path, steps: int, model: nn.Module | None = None, **settings: object) -> Runner:
    checkpoint = dict(type='bioattn_mm.AtomicCheckpointHook', by_epoch=False, interval=2)
    return Runner(
        **{
            'model': model or ToyModel(),
            'work_dir': str(folder),
            'train_dataloader': loader([dict(inputs=0)] * NUM_IMAGES),
            'train_cfg': dict(by_epoch=False, max_iters=steps),
            'optim_wrapper': dict(optimizer=dict(type='SGD', lr=0.1)),
            'default_hooks': dict(logger=dict(type='LoggerHook', interval=1), checkpoint=checkpoint),
            'experiment_name': folder.name,
            'log_level': 'WARNING',
            **settings,
        }
    )


def train(runner: Runner) -> None:
    with summarised(runner):
        runner.train()


def lines_of(folder: Path) -> list[dict]:
    """Without NaN and Infinity, which are no JSON."""
    return [json.loads(row, parse_constant=int) for row in (folder / 'steps.jsonl').open()]


def steps_of(folder: Path) -> list[int]:
    return [line['step'] for line in lines_of(folder) if 'iter' in line]


class SlowMetric(BaseMetric):
    """A metric in NumPy's float32, which JSON does not take."""

    def process(self, data_batch: dict, data_samples: list) -> None:
        self.results.append(0)

    def compute_metrics(self, results: list) -> dict:
        time.sleep(0.2)
        return dict(mIoU=np.float32(12.5), names=['wall'])


def test_a_line_for_each_step(tmp_path: Path) -> None:
    folder = tmp_path / 'lines'
    validation = dict(
        val_dataloader=dict(dataset=[dict(inputs=0)], sampler=dict(type='DefaultSampler'), batch_size=1),
        val_cfg=dict(),
        val_evaluator=Evaluator(SlowMetric()),
    )
    train(toy_runner(folder, 4, train_cfg=dict(by_epoch=False, max_iters=4, val_interval=2), **validation))
    start, *middle, end = lines_of(folder)
    steps = [line for line in middle if 'iter' in line]
    assert [line for line in middle if 'iter' not in line] == [dict(mIoU=12.5, step=2), dict(mIoU=12.5, step=4)]
    assert steps[2]['time'] < 0.1  # the validation before it is left out
    assert start['step'] == 0 and not start['start']['resumed'] and start['start']['processes'] == 1
    assert [line['step'] for line in steps] == [line['iter'] for line in steps] == [1, 2, 3, 4]
    assert [line['epoch'] for line in steps] == [1, 1, 1, 2]  # three steps of two images
    # Each step takes 0.1 from the weight, which is the loss. mmengine logs means over several steps.
    assert [line['loss'] for line in steps] == pytest.approx([1, 0.9, 0.8, 0.7])
    assert [line['loss'] for line in scalars(folder) if 'loss' in line] == pytest.approx([1, 0.95, 0.9, 0.85])
    assert {line['lr'] for line in steps} == {0.1}
    for line in steps:
        assert line['time'] >= line['data_time'] + line['hook_time'] - 2e-6 > 0
        assert line['images_per_second'] == pytest.approx(BATCH / line['time'], rel=0.01)
        assert line['memory'] > 100
    assert end['summary']['ended'] == 'finished' and end['summary']['steps'] == 4


def test_a_run_that_fails_and_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / 'resumed'

    def fail() -> None:
        raise RuntimeError('first line\nout of memory')

    with pytest.raises(RuntimeError, match='out of memory'):
        train(toy_runner(folder, 8, ToyModel({6: fail})))
    assert steps_of(folder) == [1, 2, 3, 4, 5]
    assert lines_of(folder)[-1]['summary']['ended'] == 'RuntimeError: out of memory'

    # Killed later, and the disk lost some: the last lines are damaged or cut off.
    with (folder / 'steps.jsonl').open('ab') as file:
        file.write(b'3\n{}\n\xff\xfe\n' + bytes(9) + b'\n{"step": 6, "it')
    checkpoint = str(folder / 'iter_4.pth')
    train(toy_runner(folder, 8, load_from=checkpoint, resume=True, experiment_name='resumed_2'))
    assert steps_of(folder) == [1, 2, 3, 4, 5, 6, 7, 8]
    lines = lines_of(folder)
    assert [line['start']['resumed'] for line in lines if 'start' in line] == [False, True]
    summaries = [line['summary'] for line in lines if 'summary' in line]
    found = [(one['ended'].partition(':')[0], one['starts'], one['resumed']) for one in summaries]
    assert found == [('RuntimeError', 1, 0), ('finished', 2, 1)]


def test_what_took_the_time_of_a_stall(tmp_path: Path) -> None:
    def wait() -> int:
        time.sleep(0.3)
        return 1

    class SlowImages(list):
        def __getitem__(self, index: int) -> dict:
            self.calls = getattr(self, 'calls', 0) + 1
            if self.calls == 2 * 20 + 1:  # the first image of step 21
                wait()
            return super().__getitem__(index % len(self))

    folder = tmp_path / 'stalls'
    images = loader(SlowImages([dict(inputs=0)] * NUM_IMAGES))
    runner = toy_runner(folder, 30, ToyModel({25: wait}), train_dataloader=images)
    hook = Hook()
    hook.after_train_iter = lambda runner, **_: runner.iter + 1 == 28 and wait()
    runner.register_hook(hook)
    train(runner)
    found = lines_of(folder)[-1]['summary']['stalls']
    parts = {stall['step']: stall['part'] for stall in found['longest'] if stall['seconds'] > 0.29}
    assert parts == {21: 'data', 25: 'computing', 28: 'hooks'}
    assert 0.8 < found['seconds'] < 3


def test_losses_that_are_not_finite(tmp_path: Path) -> None:
    folder = tmp_path / 'not_finite'
    model = ToyModel({3: lambda: math.inf, 5: lambda: math.nan})
    train(toy_runner(folder, 6, model))
    steps = [line for line in lines_of(folder) if 'iter' in line]
    assert [line['step'] for line in steps if line['loss'] is None] == [3, 5]
    summary = lines_of(folder)[-1]['summary']
    assert summary['nonfinite'] == dict(count=2, first=[3, 5])


def line(step: int, **values: object) -> dict:
    times = dict(time=1.0, data_time=0.125, hook_time=0.0, images_per_second=4.0, memory=100, loss=1.0)
    return dict(times, step=step, iter=step) | values


def test_health_of_several_starts() -> None:
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


def test_health_without_a_step_and_with_many_bad_ones() -> None:
    summary = health([dict(step=0, start=dict(resumed=False))])
    assert summary['steps'] == 0 and summary['step_time'] is None and summary['peak_memory'] is None
    assert summary['stalls'] == dict(count=0, seconds=0.0, longest=[])
    lines = [line(step, loss=None, time=9.0 if step % 4 == 0 else 1.0) for step in range(1, 30)]
    summary = health(lines)
    assert summary['nonfinite'] == dict(count=29, first=[1, 2, 3, 4, 5])
    assert summary['stalls']['count'] == 7 and len(summary['stalls']['longest']) == 5
