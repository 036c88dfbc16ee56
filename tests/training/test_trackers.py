"""`--log`: what Weights & Biases and MLflow get, offline, and what a user reads if one is missing."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.visualization import Visualizer

from bioattn_mm.errors import InputError
from bioattn_mm.training.trackers import set_trackers

from ..needs import needs


@pytest.fixture
def config(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """A config with a work dir, and trackers that stay on this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
    (tmp_path / 'work').mkdir()
    visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
    settings = dict(visualizer=visualizer, train_cfg=dict(max_iters=160000), work_dir='work')
    yield Config(settings, filename=root / 'configs/transnext/upernet_tiny_ade20k.py')
    if 'wandb' in sys.modules:
        sys.modules['wandb'].teardown()  # which makes it read the environment again
    if 'mlflow' in sys.modules:
        sys.modules['mlflow'].end_run()


def log(config: Config, tracker: str) -> Visualizer:
    """Do with the visualizer of a config what a run does, in the same order."""
    config = Config(config.to_dict(), filename=config.filename)
    set_trackers(config, [tracker])
    visualizer = Visualizer(vis_backends=config.visualizer.vis_backends[1:], save_dir='work/log')
    visualizer.add_config(config)
    visualizer.add_scalars(dict(loss=2.0, iter=10), 10)
    visualizer.add_scalars(dict(loss=1.0, iter=20), 20)
    visualizer.add_scalars(dict(mIoU=30.0), 1)  # of a validation by epochs: mmengine's step is the epoch
    return visualizer


@needs('mlflow')
def test_mlflow_has_curves_and_config(config: Config, tmp_path: Path) -> None:
    import mlflow

    mlflow.set_tracking_uri(f'file://{tmp_path}/store')  # in place of MLFLOW_TRACKING_URI, which it reads once
    log(config, 'mlflow').close()
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name('transnext')
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == 'upernet_tiny_ade20k'
    curve = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, 'loss')]
    assert curve == [(10, 2.0), (20, 1.0)]
    assert run.data.metrics['mIoU'] == 30
    assert run.data.params['train_cfg.max_iters'] == '160000'


@pytest.mark.slow
@needs('wandb')
def test_wandb_has_curves_over_the_iterations(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    axes = []
    monkeypatch.setattr(wandb.Run, 'define_metric', lambda run, name, step_metric: axes.append((name, step_metric)))
    Path('own_code.py').touch()
    visualizer = log(config, 'wandb')
    assert axes == [('*', 'iter')]
    assert (wandb.run.project, wandb.run.name) == ('transnext', 'upernet_tiny_ade20k')
    assert wandb.run.config['train_cfg'] == dict(max_iters=160000)
    summary = dict(wandb.run.summary)
    assert {key: summary[key] for key in ('loss', 'iter', 'mIoU')} == dict(loss=1, iter=20, mIoU=30)
    visualizer.close()
    assert not list(Path('work').rglob('own_code.py'))


def test_names_of_a_config_elsewhere_and_a_missing_package(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a backend that the config has already."""
    monkeypatch.setattr('bioattn_mm.training.trackers.find_spec', lambda name: None if name == 'mlflow' else name)
    Path('crops').mkdir()
    config.dump('crops/wheat.py')
    config = Config.fromfile('crops/wheat.py')
    config.visualizer.vis_backends = [dict(type='TensorboardVisBackend')]
    set_trackers(config, ['tensorboard', 'wandb'], 'test')
    assert config.visualizer.vis_backends[1:] == [
        dict(type='bioattn_mm.IterationWandbVisBackend', init_kwargs=dict(project='crops', name='wheat test'))
    ]
    assert config.custom_hooks == [dict(type='bioattn_mm.LogTestMetricsHook')]
    with pytest.raises(InputError, match=r"--log mlflow needs a package .*: pip install 'bioattn_mm\[log\]'"):
        set_trackers(config, ['mlflow'])
