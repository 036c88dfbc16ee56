"""`--log` of the tools: curves, metrics and the config also in TensorBoard, Weights & Biases and MLflow."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from mmengine.config import Config

from ..engine.checkpoints import SIGNALS
from ..errors import InputError
from ..files import read_json, write_json
from ..run_config.config import default_work_dir
from ..run_config.distributed import rank_and_size
from ..run_config.installed import EXTRAS

# In the work dir: by which ids the trackers know the run, for it to go on there after --resume.
IDS = 'trackers.json'


def set_trackers(config: Config, names: Sequence[str], job: str = '') -> None:
    """Let the run of a config write to trackers, too. The project is the system, the run is named as the config.

    W&B and MLflow take what their own variables of the environment say, WANDB_MODE=offline and MLFLOW_TRACKING_URI
    among them. A resumed run goes on in the run that it had there.

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
    ids = known_ids(config) if config.get('resume') else {}
    backends = []
    if 'tensorboard' in names:
        backends.append(dict(type='TensorboardVisBackend'))
    if 'wandb' in names:
        settings = dict(project=os.environ.get('WANDB_PROJECT', project), name=os.environ.get('WANDB_NAME', run))
        if 'wandb' in ids:
            settings.update(id=ids['wandb'], resume='allow')
        backends.append(dict(type='bioattn_mm.IterationWandbVisBackend', init_kwargs=settings))
    if 'mlflow' in names:
        backends.append(mlflow_backend(project, run, ids.get('mlflow')))
    if 'visualizer' not in config:
        config.visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
    visualizer = config.visualizer
    there = visualizer.get('vis_backends') or []
    types = {backend['type'] for backend in there}
    visualizer.vis_backends = [*there, *(backend for backend in backends if backend['type'] not in types)]


def mlflow_backend(experiment: str, run: str, run_id: str | None) -> dict:
    """The config of mmengine's backend for MLflow.

    Args:
        experiment: Its name, unless MLFLOW_EXPERIMENT_NAME has another.
        run: Name of the run.
        run_id: The run to go on with.

    Raises:
        InputError: The store is a database, and the packages for that are missing.
    """
    import mlflow

    uri = mlflow.get_tracking_uri()
    if '://' in uri and uri.partition(':')[0].partition('+')[0] in ('sqlite', 'postgresql', 'mysql', 'mssql'):
        missing = [name for name in ('sqlalchemy', 'alembic') if find_spec(name) is None]
        if missing:
            raise InputError(
                f'--log mlflow into {uri} needs {missing[0]}, which is not installed: pip install '
                "'bioattn_mm[log]', or name a server in MLFLOW_TRACKING_URI"
            )
    backend = dict(
        type='MLflowVisBackend',
        exp_name=os.environ.get('MLFLOW_EXPERIMENT_NAME', experiment),
        run_name=run,
        tracking_uri=uri,
        artifact_suffix=('.json', '.jsonl', '.log', '.py'),
    )
    if run_id is not None:
        os.environ['MLFLOW_RUN_ID'] = run_id
        backend['tracked_config_keys'] = []  # MLflow refuses values that changed
    return backend


@contextmanager
def tracked(names: Sequence[str]) -> Iterator[None]:
    """Context of a run with trackers: their errors become one line, and there a run that failed is said to have.

    Args:
        names: As in `set_trackers`.

    Raises:
        InputError: A tracker cannot be reached, or does not let the user in.
    """
    try:
        yield
    except BaseException as error:
        end_trackers(error)
        tracker = next((name for name in names if type(error).__module__.split('.')[0] == name), None)
        if tracker is None:
            raise
        hint = dict(
            wandb='`wandb login` lets you in, and with WANDB_MODE=offline nothing is sent',
            mlflow='MLFLOW_TRACKING_URI names the store',
        )
        raise InputError(f'--log {tracker}: {str(error).splitlines()[0].rstrip(".")}; {hint[tracker]}') from error


def end_trackers(error: BaseException) -> None:
    """Tell the trackers of this process that its run failed or was told to end."""
    if 'mlflow' in sys.modules:
        told = isinstance(error, KeyboardInterrupt) or getattr(error, 'code', None) in {128 + n for n in SIGNALS}
        if sys.modules['mlflow'].active_run():
            sys.modules['mlflow'].end_run('KILLED' if told else 'FAILED')
    if 'wandb' in sys.modules and sys.modules['wandb'].run:
        sys.modules['wandb'].finish(exit_code=1)


def known_ids(config: Config) -> dict[str, str]:
    """The ids under which trackers know the run of a work dir."""
    path = Path(config.work_dir) / IDS
    return read_json(path, 'remove it for a new run of the trackers') if path.is_file() else {}


def keep_ids(config: Config, names: Sequence[str], launcher: str) -> None:
    """Write the ids under which trackers know the run that has begun, into its work dir."""
    if rank_and_size(launcher)[0] != 0 or not {'wandb', 'mlflow'} & set(names):
        return
    ids = known_ids(config)
    if 'wandb' in names and (run := sys.modules['wandb'].run):
        ids['wandb'] = run.id
    if 'mlflow' in names and (run := sys.modules['mlflow'].active_run()):
        ids['mlflow'] = run.info.run_id
    write_json(Path(config.work_dir) / IDS, ids)
