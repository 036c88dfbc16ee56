"""`--log` of the tools: mmengine's visualization backends of TensorBoard, Weights & Biases and MLflow by name."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mmengine.config import Config

from ..errors import InputError
from ..run_config.config import default_work_dir
from ..run_config.installed import EXTRAS


def set_trackers(config: Config, names: Sequence[str], job: str = '') -> None:
    """Let the run of a config write to trackers, too. The project is the system, the run is named as the config.

    W&B and MLflow take what their own variables of the environment say, such as WANDB_MODE, WANDB_RUN_ID and
    MLFLOW_TRACKING_URI.

    Args:
        config: With its `work_dir`; changed in place.
        names: Some of tensorboard, wandb and mlflow.
        job: What is appended to the run's name, such as 'test'.

    Raises:
        InputError: The package of a tracker is missing.
    """
    for name in names:
        if find_spec(name) is None:
            raise InputError(
                f"--log {name} needs a package that is not installed: pip install 'bioattn_mm[{EXTRAS[name]}]'"
            )
    path = Path(config.filename).resolve()
    below_configs = Path(default_work_dir(config.filename, mini=False)).parts[1:]
    project = below_configs[0] if len(below_configs) > 1 else path.parent.name
    run = f'{path.stem} {job}' if job else path.stem
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
