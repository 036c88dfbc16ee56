"""`--log`: what TensorBoard, Weights & Biases and MLflow get, offline, and what a user reads if one is missing."""

import json
import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.visualization import Visualizer

from bioattn_mm.errors import InputError
from bioattn_mm.training.installed import EXTRAS
from bioattn_mm.training.trackers import set_trackers

from ..needs import needs

CONFIG = 'configs/transnext/upernet_tiny_ade20k.py'


@pytest.fixture
def config(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """A config with a work dir, and trackers that stay on this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
    if has('mlflow'):
        import mlflow

        mlflow.set_tracking_uri(f'file://{tmp_path}/store')  # in place of MLFLOW_TRACKING_URI, which it reads once
    (tmp_path / 'work').mkdir()
    visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
    settings = dict(visualizer=visualizer, train_cfg=dict(max_iters=160000), work_dir='work')
    yield Config(settings, filename=root / CONFIG)
    if 'wandb' in sys.modules:
        sys.modules['wandb'].teardown()  # which makes it read the environment again
    if 'mlflow' in sys.modules:
        sys.modules['mlflow'].end_run()


def log(config: Config, tracker: str, *lines: tuple[dict, int]) -> None:
    """Do with the visualizer of a config what a run does, in the same order."""
    config = Config(config.to_dict(), filename=config.filename)
    set_trackers(config, [tracker])
    backends = [backend for backend in config.visualizer.vis_backends if backend['type'] != 'LocalVisBackend']
    visualizer = Visualizer(vis_backends=backends, save_dir='work/log')
    visualizer.add_config(config)
    for values, step in lines:
        visualizer.add_scalars(values, step)
    visualizer.close()


def has(name: str) -> bool:
    return find_spec(name) is not None


@needs('mlflow')
def test_mlflow_has_curves_and_config(config: Config) -> None:
    import mlflow

    log(config, 'mlflow', (dict(loss=2.0, iter=10), 10), (dict(loss=1.0, iter=20), 20), (dict(mIoU=30.0), 20))
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
def test_wandb_has_curves_over_the_iterations(config: Config, tmp_path: Path) -> None:
    (tmp_path / 'own_code.py').touch()
    # An epoch's validation: mmengine's step is the epoch.
    log(config, 'wandb', (dict(loss=2.0, iter=10), 10), (dict(loss=1.0, iter=20), 20), (dict(mIoU=30.0), 1))
    sys.modules['wandb'].teardown()  # until its own process has written all
    (file,) = Path('work/log').rglob('run-*.wandb')
    history, settings = read_wandb(file)
    assert history == [dict(loss=2, iter=10), dict(loss=1, iter=20), dict(mIoU=30, iter=20)]
    assert settings == ('transnext', 'upernet_tiny_ade20k')
    assert not list(Path('work').rglob('own_code.py'))


def read_wandb(file: Path) -> tuple[list[dict], tuple[str, str]]:
    """The lines of W&B's own file of a run, and the names of project and run."""
    from wandb.proto import wandb_internal_pb2

    history, names = [], None
    for data in leveldb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof('record_type') == 'history':
            values = {
                '/'.join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
            }
            history.append({key: value for key, value in values.items() if not key.startswith('_')})
        elif record.WhichOneof('record_type') == 'run':
            names = record.run.project, record.run.display_name
    return history, names


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB, in which long records are cut into fragments."""
    position, record = 7, b''  # after W&B's header
    while position < len(data):
        left = 2**15 - position % 2**15
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from('<IHB', data, position)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last fragment
            yield record
            record = b''


@pytest.mark.parametrize('name', ['tensorboard', 'wandb', 'mlflow'])
def test_a_package_that_is_missing(config: Config, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr('bioattn_mm.training.trackers.find_spec', lambda name: None)
    with pytest.raises(InputError) as error:
        set_trackers(config, [name])
    assert str(error.value) == (
        f"--log {name} needs a package that is not installed: pip install 'bioattn_mm[{EXTRAS[name]}]'"
    )


def test_names_of_a_config_elsewhere(config: Config, tmp_path: Path) -> None:
    """And variables of W&B's own, and a backend that the config has already."""
    path = tmp_path / 'crops' / 'wheat.py'
    path.parent.mkdir()
    config.dump(path)
    config = Config.fromfile(path)
    config.work_dir = 'work'
    config.visualizer.vis_backends = [dict(type='TensorboardVisBackend')]
    if has('wandb'):
        set_trackers(config, ['tensorboard', 'wandb'], 'test')
        assert config.visualizer.vis_backends[1:] == [
            dict(type='bioattn_mm.IterationWandbVisBackend', init_kwargs=dict(project='crops', name='wheat test'))
        ]
    else:
        set_trackers(config, ['tensorboard'])
        assert len(config.visualizer.vis_backends) == 1
