"""A dry run of a tiny model."""

import os
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from mmengine.registry import VISBACKENDS
from mmengine.visualization import LocalVisBackend

from bioattn_mm.checkpoints import mmengine_reads_all
from bioattn_mm.training.config.distributed import prepare_process
from bioattn_mm.training.dry_run import dry_run
from bioattn_mm.training.runner import build_runner
from bioattn_mm.training.start import set_resume

from ..tools.running import forget_runs
from .ranks import reasons, run_ranks
from .toy_run import ToyModel, toy_config


@VISBACKENDS.register_module()
class Tracker(LocalVisBackend):
    """Writes somewhere else, as those of `--log` do."""

    def add_config(self, config: object, **kwargs) -> None:
        raise AssertionError('a dry run writes to a tracker')


def test_of_a_training_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    config = toy_config(2, 1)
    config.update(work_dir='A', launcher='none')
    forget_runs()
    build_runner(config).train()
    config.visualizer = dict(type='Visualizer', vis_backends=[dict(type='Tracker')])
    set_resume(config, 'auto', ToyModel().state_dict())
    forget_runs()
    with mmengine_reads_all():
        dry_run(config)
    assert capsys.readouterr().out.endswith(
        'nothing is left to train: A/iter_2.pth has all steps that train_cfg asks for\n'
    )


def dry_run_of_two() -> None:
    """What this process prints goes into a file."""
    config = toy_config(6, 2)
    config.launcher = 'pytorch'
    prepare_process(config, config.launcher)
    with Path(f'printed{os.environ["RANK"]}.txt').open('w') as file, redirect_stdout(file):
        dry_run(config)


def test_of_two_processes_the_main_one_prints(tmp_path: Path) -> None:
    assert run_ranks(dry_run_of_two, folder=tmp_path, world_size=2) == [0, 0], reasons(tmp_path)
    first, second = ((tmp_path / f'printed{rank}.txt').read_text() for rank in range(2))
    assert not second
    rows = dict(re.split(' {2,}', line, maxsplit=1) for line in first.splitlines() if re.match('\\w.* {2}', line))
    assert rows['images per step'] == '4 of 16: 2 a process x 2 processes x 1 accumulated iterations'
    assert (rows['iterations'], rows['weights'], rows['seed']) == ('6: 1.5 epochs', 'random', '0')
    assert rows['validation image'] == 'none' and re.match(r'\d+\.\d\d s, loss \d', rows['first step'])
