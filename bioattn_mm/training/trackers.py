"""Experiment trackers, which `--log` of the tools writes to: mmengine's visualization backends and what they lack."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.visualization.vis_backend import WandbVisBackend, force_init_env

from ..errors import InputError
from ..registry import HOOKS, VISBACKENDS
from .config.loading import default_work_dir
from .config.pipelines import add_hook
from .installed import EXTRAS
from .step_log import numbers_of


def set_trackers(config: Config, names: Sequence[str], job: str = '') -> None:
    """Let the run of a config write to trackers: some of tensorboard, wandb and mlflow.

    The project is the system; the run is named as the config, with the `job` behind it. With the job 'test' the
    metrics of a test are logged, too.
    """
    for name in names:
        if find_spec(name) is None:
            raise InputError(
                f"--log {name} needs a package that is not installed: pip install 'bioattn_mm[{EXTRAS[name]}]'"
            )
    if names and job == 'test':
        add_hook(config, 'LogTestMetricsHook')
    path = Path(config.filename).resolve()
    below_configs = Path(default_work_dir(config.filename, mini=False)).parts[1:]
    project = below_configs[0] if len(below_configs) > 1 else path.parent.name
    run = f'{path.stem} {job}'.strip()
    backends = []
    if 'tensorboard' in names:
        backends.append(dict(type='TensorboardVisBackend'))
    if 'wandb' in names:
        settings = dict(project=os.environ.get('WANDB_PROJECT', project), name=os.environ.get('WANDB_NAME', run))
        backends.append(dict(type='bioattn_mm.IterationWandbVisBackend', init_kwargs=settings))
    if 'mlflow' in names:
        import mlflow

        settings = dict(exp_name=os.environ.get('MLFLOW_EXPERIMENT_NAME', project), run_name=run)
        # mmengine's own default is a folder of files, which MLflow 3 refuses.
        backends.append(dict(type='MLflowVisBackend', tracking_uri=mlflow.get_tracking_uri(), **settings))
    if 'visualizer' not in config:
        config.visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
    there = config.visualizer.get('vis_backends') or []
    types = {backend['type'] for backend in there}
    config.visualizer.vis_backends = [*there, *(backend for backend in backends if backend['type'] not in types)]


@VISBACKENDS.register_module()
class IterationWandbVisBackend(WandbVisBackend):
    """mmengine's backend for Weights & Biases, with curves over the iterations.

    mmengine's has the number of log lines on the axis, and copies all Python files below the working directory, which
    may be a walk through the data sets.
    """

    def _init_env(self) -> None:
        super()._init_env()
        # W&B itself takes the last iteration for what names none, such as a validation.
        self._wandb.define_metric('*', step_metric='iter')

    @force_init_env
    def add_config(self, config: Config, **kwargs) -> None:
        self._wandb.config.update(config.to_dict(), allow_val_change=True)


@HOOKS.register_module()
class LogTestMetricsHook(Hook):
    """Pass the metrics of a test to the visualizer, so that they get to TensorBoard, W&B and MLflow."""

    # The hook runs before LoggerHook, which closes the visualizer.
    priority = 'NORMAL'

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        runner.visualizer.add_scalars({f'test/{name}': value for name, value in numbers_of(metrics or {}).items()})
