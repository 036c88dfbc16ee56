"""A dry run of a tiny model."""

import re
from unittest.mock import Mock

import pytest

from bioattn_mm.checkpoints import mmengine_reads_all
from bioattn_mm.training import dry_run
from bioattn_mm.training.start import set_resume

from ..tools.running import forget_runs
from .toy_run import ToyModel, run, toy_config

pytestmark = pytest.mark.usefixtures('place')


def test_of_a_training_that_is_over(capsys: pytest.CaptureFixture) -> None:
    run('A', 2)
    config = toy_config(2, 1)
    # Nothing is written to trackers: this one cannot even be built.
    visualizer = dict(type='Visualizer', vis_backends=[dict(type='NoTracker')])
    config.update(work_dir='A', launcher='none', visualizer=visualizer)
    set_resume(config, 'auto', ToyModel().state_dict())
    forget_runs()
    with mmengine_reads_all():
        dry_run.dry_run(config)
    assert 'nothing is left to train: A/iter_2.pth has all steps' in capsys.readouterr().out


def test_of_a_resumed_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The time is that of the steps that are left."""
    run('A', 2)
    config = toy_config(3602, 1)
    config.update(work_dir='A', launcher='none')
    set_resume(config, 'auto', ToyModel().state_dict())
    forget_runs()
    monkeypatch.setattr(dry_run.DryRunHook, 'step_seconds', property(lambda _: 1.0, lambda *_: None), raising=False)
    with mmengine_reads_all():
        dry_run.dry_run(config)
    assert re.search('estimated duration +1:00:00 at', capsys.readouterr().out)


def test_of_two_processes_the_main_one_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(dry_run, 'get_world_size', lambda: 2)
    for is_main in (False, True):
        monkeypatch.setattr(dry_run, 'is_main_process', Mock(return_value=is_main))
        config = toy_config(6, 2)
        config.launcher = 'none'
        forget_runs()
        dry_run.dry_run(config)
        printed = capsys.readouterr().out
        assert bool(printed) == is_main
    rows = dict(re.split(' {2,}', line, maxsplit=1) for line in printed.splitlines() if re.match('\\w.* {2}', line))
    assert rows['images per step'] == '4 of 16: 2 a process x 2 processes x 1 accumulated iterations'
    assert (rows['iterations'], rows['weights'], rows['seed']) == ('6: 1.5 epochs', 'random', '0')
    assert rows['validation image'] == 'none' and re.match(r'\d+\.\d\d s, loss \d', rows['first step'])
