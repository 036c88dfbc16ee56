"""A checkpoint with a defect is used for what it says, or refused in one line; and nothing is lost."""

import contextlib
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.runner.checkpoint import load_checkpoint
from torch import Tensor
from torch.distributed import checkpoint as dcp

from bioattn_mm.checkpoints import dataset_meta_of, mmengine_reads_all, read_checkpoint, weights_for, weights_of
from bioattn_mm.checkpoints.sharded import split, write_rest
from bioattn_mm.checkpoints.unpickling import code_refused
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.config_text import configs_formatted_once
from bioattn_mm.training.config.model_check import model_of
from bioattn_mm.training.runner import build_runner, failures_in_one_line
from bioattn_mm.training.start import set_resume, set_start

from ..files import contents
from ..tools.running import forget_runs
from ..training.toy_run import ToyModel, toy_config
from .defects import EITHER, OF_BYTES, OF_CONTENT, OF_STATE, REFUSED, SAME, apply

# For hours, with other defects each time: CHECKPOINT_DEFECTS=100000 CHECKPOINT_SEED=7.
NUMBER = int(os.environ.get('CHECKPOINT_DEFECTS', 120))
SEED = int(os.environ.get('CHECKPOINT_SEED', 0))
DEFECTS = [*OF_BYTES, *OF_CONTENT, *OF_STATE]
STEPS = 2


@HOOKS.register_module()
class RisingScoreHook(Hook):
    """Notes the weights that a training starts with, and lets each step give a better metric than the last."""

    priority = 'LOWEST'
    weights: dict[str, Tensor] = {}

    def before_train(self, runner: Runner) -> None:
        type(self).weights = {name: value.clone() for name, value in runner.model.state_dict().items()}
        self.start = runner.iter

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        if runner.iter == self.start:
            return
        hook = next(hook for hook in runner.hooks if isinstance(hook, CheckpointHook))
        hook.after_val_epoch(runner, dict(mIoU=1 + runner.iter / 100))


def config_of(steps: int, folder: str) -> Config:
    config = toy_config(steps, 1, 1, max_keep_ckpts=1, save_best='mIoU', rule='greater')
    config.custom_hooks = [*config.custom_hooks, dict(type='RisingScoreHook')]
    config.update(launcher='none', work_dir=folder, log_level='ERROR')
    return config


def train(config: Config) -> Runner:
    forget_runs()
    with failures_in_one_line(config) as hook:
        runner = build_runner(config)
        runner.register_hook(hook)
        runner.train()
    return runner


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a short training."""
    folder = tmp_path_factory.mktemp('trained')
    with configs_formatted_once(), contextlib.chdir(folder):
        train(config_of(STEPS, 'run'))
    return folder / f'run/iter_{STEPS}.pth'


def resume(path: str) -> dict[str, Tensor]:
    config = config_of(STEPS + 2, 'run')
    set_resume(config, path, ToyModel().state_dict())
    train(config)
    return RisingScoreHook.weights


def load_from(path: str) -> dict[str, Tensor]:
    config = config_of(2, 'new')
    config.load_from = path
    set_start(config, ToyModel())
    train(config)
    return RisingScoreHook.weights


def load_to_test(path: str) -> dict[str, Tensor]:
    """What tools/test.py does before it tests, and what mmengine's Runner does then."""
    model, config = ToyModel(), Config(dict(model=dict(type='ToyModel'), default_scope='mmengine'))
    weights_for(model_of(config), path, weights_of(path, read_checkpoint(path)))
    load_checkpoint(model, path)
    return model.state_dict()


def predict(path: str) -> dict[str, Tensor]:
    """What `Predictor` does."""
    checkpoint = read_checkpoint(path)
    dataset_meta_of(checkpoint)
    model = ToyModel()
    model.load_state_dict(weights_for(model, path, weights_of(path, checkpoint)), strict=False)
    return model.state_dict()


WAYS = dict(resume=resume, load_from=load_from, test=load_to_test, predict=predict)


@pytest.mark.parametrize('part', range(4))
def test_random_defects(part: int, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every defect is met by every way of loading, if there are enough of them."""
    monkeypatch.chdir(tmp_path)
    whole = torch.load(trained, weights_only=False)
    outcomes, failures = [], []
    for number in range(part, NUMBER, 4):
        rng = random.Random(f'{SEED} {number}')
        name = DEFECTS[(number + SEED) % len(DEFECTS)]
        way = list(WAYS)[(number // 4 + number // len(DEFECTS)) % 4]
        if name in OF_STATE:
            way = rng.choice(['resume', 'resume', 'resume', *WAYS])
        try:
            outcomes.append(check(name, way, rng, trained, whole))
        except Exception as error:  # the others are to be seen, too
            failures.append(f'{number}: {name}, {way}: {type(error).__name__}: {error}')
    assert not failures, '\n'.join(failures)
    assert {SAME, REFUSED} == set(outcomes)


def check(name: str, way: str, rng: random.Random, trained: Path, whole: dict) -> str:
    """Load a checkpoint with a defect in one way, in the working directory; return what became of it."""
    what = f'{name}, {way}'
    for folder in ('run', 'new', 'victim', 'other'):
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir()
    for file in ('victim/kept.txt', 'victim/best_mIoU_iter_1.pth', 'run/notes.txt', 'run/.mine.part'):
        Path(file).write_text('of the user')
    path = f'run/iter_{STEPS}.pth' if way == 'resume' else 'other/checkpoint.pth'
    expected = apply(name, trained, Path(path), rng)
    if name in OF_STATE and way != 'resume':
        expected = EITHER if name == 'meta' else SAME
    before = contents(Path())
    caught = None
    with code_refused(), mmengine_reads_all(), configs_formatted_once():
        try:
            weights = WAYS[way](path)
        except InputError as error:
            caught = str(error)
    after = contents(Path())
    # The first step of a training supersedes the checkpoint that it resumed from.
    superseded = {path} if way == 'resume' and caught is None else set()
    assert {file for file, content in before.items() if after.get(file) != content} <= superseded, what
    if caught is not None:
        assert expected != SAME, f'{what}: {caught}'
        assert len(caught.splitlines()) == 1, f'{what}: {caught}'
        # The first step finds it where the file is not known any more.
        assert path in caught or name in ('large values', *OF_STATE), f'{what}: {caught}'
        return REFUSED
    assert expected != REFUSED, what
    key = 'ema_state_dict' if way == 'resume' else 'state_dict'
    for entry, value in whole[key].items():
        own = weights[entry.removeprefix('module.')]
        tolerance = 0.01 if 'float16' in name else 0
        if name != 'large values':
            assert torch.allclose(own.double(), value.double(), rtol=tolerance, atol=tolerance), f'{what}: {entry}'
    return SAME


@pytest.fixture(scope='module')
def sharded(trained: Path) -> Path:
    """The same checkpoint as a folder, as a training with FSDP writes it."""
    folder = trained.with_name('sharded')
    tensors, rest = split(torch.load(trained, weights_only=False))
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    write_rest(folder, rest)
    return folder


def test_random_defects_of_a_folder(sharded: Path, tmp_path: Path) -> None:
    whole = read_checkpoint(str(sharded))['state_dict']
    folder, outcomes, failures = tmp_path / 'iter_2.pth', [], []
    for number in range(NUMBER // 2):
        rng = random.Random(f'{SEED} {number}')
        name = rng.choice(['flipped bits', 'cut off', 'noise in the middle', 'zeros'])
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sharded, folder)
        file = rng.choice(sorted(folder.iterdir()))
        file.write_bytes(OF_BYTES[name][0](file.read_bytes(), rng))
        try:
            weights = weights_of(str(folder), read_checkpoint(str(folder)))
            same = all(torch.equal(weights[entry], value) for entry, value in whole.items())
            outcomes.append(SAME if same else 'misled')
        except InputError as error:
            outcomes.append(REFUSED if str(folder) in str(error) else str(error))
        except Exception as error:
            outcomes.append(f'{type(error).__name__}: {error}')
        if outcomes[-1] not in (SAME, REFUSED):
            failures.append(f'{number}: {name} of {file.name}: {outcomes[-1]}')
    assert not failures, '\n'.join(failures)
    assert REFUSED in outcomes
