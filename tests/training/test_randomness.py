"""A config is seeded by inheriting one file; what that cannot seed is named before the training starts."""

import random
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS, TRANSFORMS, DefaultScope
from mmengine.runner import Runner

from bioattn_mm.training.randomness import SeedingHook, start_worker, warn_if_unseeded

from ..conftest import ROOT
from ..tools.running import LoaderWorkers

SEEDED = 'configs/_base_/runtimes/seeded.py'
BY_EPOCH = dict(type='bioattn_mm.ResumableEpochBasedTrainLoop', max_epochs=2)
BY_ITERATION = dict(type='IterBasedTrainLoop', max_iters=4)
DRAWS = []


@TRANSFORMS.register_module()
class Draw(BaseTransform):
    def __init__(self, opened: str) -> None:
        self.opened = Path(opened)

    def transform(self, results: dict) -> dict:
        with self.opened.open('a') as file:
            print(results['number'], file=file)
        return dict(inputs=torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()]))


@DATASETS.register_module()
class FourSamples(BaseDataset):
    def load_data_list(self) -> list[dict]:
        return [dict(number=number) for number in range(4)]


@MODELS.register_module()
class Drawing(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, inputs: list[torch.Tensor], mode: str) -> dict:
        DRAWS.append((*torch.stack(inputs).flatten().tolist(), torch.rand(()).item()))
        return dict(loss=self.weight.square())


def run(
    folder: Path, loop: dict, base: str | None = SEEDED, resumed=None, batch_size=2, **dataset
) -> tuple[list, str]:
    """What a training of `loop` drew, and its log; the config is one of somebody else that inherits `base`.

    The numbers of the samples that were read, in their order, stand in a file beside `folder`.
    """
    config = Config.fromfile(ROOT / base) if base else Config(dict(custom_hooks=[]))
    images = dict(type='FourSamples', pipeline=[dict(type='Draw', opened=f'{folder}.txt')])
    images = dict(dataset, dataset=images) if dataset else images
    sampler = dict(type='DefaultSampler' if 'max_epochs' in loop else 'InfiniteSampler', shuffle=True)
    config.update(
        model=dict(type='Drawing'),
        train_dataloader=dict(batch_size=batch_size, num_workers=1, sampler=sampler, dataset=images),
        train_cfg=loop,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=1)),
        load_from=resumed and str(resumed),
        resume=bool(resumed),
        randomness=dict(seed=7),
        work_dir=str(folder),
        experiment_name=str(folder),  # runs of one name share a visualizer
    )
    DRAWS.clear()
    with DefaultScope.overwrite_default_scope('mmengine'):
        runner = Runner.from_cfg(config)
        warn_if_unseeded(runner)
        random.seed()  # as another library might
        torch.seed()
        runner.train()
    LoaderWorkers.end()
    return list(DRAWS), '\n'.join(path.read_text() for path in folder.glob('**/*.log'))


# After the second iteration the epoch's last step was made, its end was not.
@pytest.mark.parametrize(('loop', 'iterations'), [(BY_EPOCH, (1, 2, 3)), (BY_ITERATION, (3,))])
def test_a_config_elsewhere_inherits_one_file(tmp_path: Path, loop: dict, iterations: tuple) -> None:
    """A run draws what it drew before, and a resumed one does not read again what it was trained on."""
    draws, log = run(tmp_path / 'whole', loop)
    whole = (tmp_path / 'whole.txt').read_text().split()
    assert len(set(draws)) == 4 and 'will not repeat' not in log
    for iteration in (0, *iterations):
        name = f'from_{iteration}'
        checkpoint = tmp_path / f'whole/iter_{iteration}.pth' if iteration else None
        assert run(tmp_path / name, loop, resumed=checkpoint)[0] == draws[iteration:]
        # Workers read ahead without end in a training by iterations.
        read = (tmp_path / f'{name}.txt').read_text().split()
        assert read[: 8 - 2 * iteration] == whole[2 * iteration : 8]
    other, log = run(tmp_path / 'unseeded', loop, None)
    assert not set(other) & set(draws)
    assert 'random draws are not seeded, so a resumed run will not repeat them: inherit configs/_base_/' in log


def test_signals_leave_the_workers_of_validations_alone() -> None:
    """As those of the training: the run validates to the end and saves a checkpoint."""
    loops = [SimpleNamespace(dataloader=SimpleNamespace(dataset=None, batch_sampler=None)) for _ in range(2)]
    for val_loop in (loops[1], None):
        runner = SimpleNamespace(train_loop=loops[0], val_loop=val_loop, train_dataloader=loops[0].dataloader)
        with patch('bioattn_mm.training.randomness.seed_samples', lambda _: []):
            SeedingHook().before_train(runner)
    assert all(loop.dataloader.worker_init_fn is start_worker for loop in loops)


def test_an_epoch_of_other_batches_begins_anew(tmp_path: Path) -> None:
    run(tmp_path / 'pairs', BY_EPOCH)
    draws, _ = run(tmp_path / 'singles', BY_EPOCH, resumed=tmp_path / 'pairs/iter_2.pth', batch_size=1)
    assert len(draws) == 2 * 4


def test_what_cannot_be_seeded_is_named_in_one_line(tmp_path: Path) -> None:
    loop = dict(type='EpochBasedTrainLoop', max_epochs=1)
    _, log = run(tmp_path / 'half', loop, type='RepeatDataset', times=1)
    (line,) = [line for line in log.splitlines() if 'a resumed run will not repeat: ' in line]
    assert 'WARNING' in line and 'samples of RepeatDataset (' in line and 'rest of an epoch after --resume' in line
