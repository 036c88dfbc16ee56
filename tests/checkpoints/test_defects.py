"""A checkpoint with a defect is used for what it says, or refused in one line; and nothing is lost.

The defects are what a disk, another program or somebody hostile does to a checkpoint.
"""

import contextlib
import copy
import functools
import io
import operator
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.runner.checkpoint import load_checkpoint
from torch import Tensor
from torch.distributed import checkpoint as dcp

from bioattn_mm.checkpoints import dataset_meta_of, mmengine_reads_all, read_checkpoint, weights_for, weights_of
from bioattn_mm.checkpoints.sharded import split, write_rest
from bioattn_mm.checkpoints.unpickling import code_refused
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.config_text import configs_formatted_once
from bioattn_mm.training.config.model_check import model_of

from ..files import contents
from ..training.toy_run import ToyModel, run, validated

# A defect must lead to the same weights, to a refusal, or to one of the two.
SAME, REFUSED, EITHER = 'same', 'refused', 'either'
Change = Callable[[dict, random.Random], object]


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 8, 64))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def noise(content: bytes, rng: random.Random) -> bytes:
    length = min(100_000, len(content) // 2)
    start = (len(content) - length) // 2
    return content[:start] + rng.randbytes(length) + content[start + length :]


def saved_anew(content: bytes, **options: bool) -> bytes:
    file = io.BytesIO()
    torch.save(torch.load(io.BytesIO(content), weights_only=False), file, **options)
    return file.getvalue()


def without_checksums(content: bytes, rng: random.Random) -> bytes:
    torch.serialization.set_crc32_options(False)
    try:
        return saved_anew(content)
    finally:
        torch.serialization.set_crc32_options(True)


def without_a_member(content: bytes, rng: random.Random) -> bytes:
    """A zip file that is whole, with all checksums, and lacks a tensor."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as members, zipfile.ZipFile(file, 'w') as kept:
        left_out = rng.choice([name for name in members.namelist() if '/data/' in name])
        for name in members.namelist():
            if name != left_out:
                kept.writestr(name, members.read(name))
    return file.getvalue()


OF_BYTES: dict[str, tuple[Callable[[bytes, random.Random], bytes], str]] = {
    'flipped bits': (flip_bits, EITHER),
    'cut off': (lambda content, rng: content[: rng.randrange(len(content))], REFUSED),
    'begins later': (lambda content, rng: content[rng.randrange(1, len(content)) :], REFUSED),
    'noise in the middle': (noise, REFUSED),
    'noise at the end': (lambda content, rng: content + rng.randbytes(rng.choice((1, 1000, 100_000))), EITHER),
    'a web page': (lambda content, rng: b'<!DOCTYPE html><html><body>404</body></html>', REFUSED),
    'zeros': (lambda content, rng: bytes(len(content)), REFUSED),
    'without checksums': (without_checksums, SAME),
    'the older format': (lambda content, rng: saved_anew(content, _use_new_zipfile_serialization=False), SAME),
    'without a member': (without_a_member, REFUSED),
}


def one(change: Callable[[Tensor], object]) -> Change:
    """A defect that replaces one of the weights."""

    def change_one(checkpoint: dict, rng: random.Random) -> None:
        weights = checkpoint['state_dict']
        name = rng.choice([name for name, x in weights.items() if x.is_floating_point() and x.numel() > 1])
        weights[name] = change(weights[name].clone())

    return change_one


def with_value(value: float) -> Change:
    return one(lambda x: x.flatten().index_fill(0, torch.tensor(x.numel() - 1), value).view_as(x))


def all_of(change: Callable[[str, Tensor], tuple[str, Tensor]]) -> Change:
    """A defect that replaces all weights, or their names."""
    return lambda content, rng: content.update(
        state_dict=dict(change(*entry) for entry in content['state_dict'].items())
    )


def put(path: str, *values: object) -> Change:
    """A defect that sets an entry of a checkpoint, with dots between keys, to one of several values."""

    def put_one(checkpoint: dict, rng: random.Random) -> None:
        *parents, last = (int(key) if key.isdigit() else key for key in path.split('.'))
        functools.reduce(operator.getitem, parents, checkpoint)[last] = rng.choice(values)

    return put_one


OF_CONTENT: dict[str, tuple[Change, str]] = {
    'int8': (one(lambda x: x.to(torch.int8)), REFUSED),
    'complex': (one(lambda x: torch.complex(x, x)), REFUSED),
    'NaN': (with_value(float('nan')), REFUSED),
    'infinite': (with_value(float('-inf')), REFUSED),
    'large values': (with_value(3e38), EITHER),
    'a list': (one(lambda x: x.tolist()), REFUSED),
    'another shape': (one(lambda x: x[..., None]), REFUSED),
    'an array': (one(lambda x: x.numpy()), REFUSED),
    'not contiguous': (one(lambda x: torch.stack([x, x], -1)[..., 0]), SAME),
    'a parameter': (one(torch.nn.Parameter), SAME),
    'float64': (all_of(lambda name, x: (name, x.double() if x.is_floating_point() else x)), SAME),
    'bfloat16': (all_of(lambda name, x: (name, x.bfloat16() if x.is_floating_point() else x)), SAME),
    'float16 everywhere': (all_of(lambda name, x: (name, x.half())), SAME),
    'other names': (all_of(lambda name, x: (name[::-1], x)), REFUSED),
    'a weight missing': (
        lambda content, rng: content['state_dict'].pop(rng.choice([*content['state_dict']])),
        REFUSED,
    ),
    'a wrapper': (all_of(lambda name, x: (f'module.{name}', x)), SAME),
    # The authors of backbones use this key, where mmengine finds no weights.
    'another key': (lambda content, rng: content.update(model=content.pop('state_dict')), SAME),
    'no state dict': (put('state_dict', None, [], 'weights', {}, torch.zeros(3)), REFUSED),
}
# These defects are in the state of the training, which predictions and new trainings do not read.
OF_STATE: dict[str, tuple[Change, str]] = {
    'meta': (put('meta', None, [], 'x', {}), REFUSED),
    'a program': (put('meta.config', "import pathlib\npathlib.Path('victim', 'kept.txt').unlink()\n"), SAME),
    'no optimizer': (lambda content, rng: content.pop('optimizer'), REFUSED),
    'optimizer': (put('optimizer', None, [], 'x'), REFUSED),
    'learning rate': (put('optimizer.param_groups.0.lr', float('nan')), REFUSED),
    'momentum that is NaN': (
        lambda content, rng: content['optimizer']['state'][0]['exp_avg'].fill_(float('nan')), REFUSED,
    ),
    'momentum of another shape': (put('optimizer.state.0.exp_avg', torch.zeros(7)), REFUSED),
    'message hub': (put('message_hub', None, [], 'x'), REFUSED),
    'a path to delete': (
        put('message_hub.runtime_info.best_ckpt', 'victim', 'victim/kept.txt', 'victim/best_mIoU_iter_1.pth',
            'run/../victim', 'run/notes.txt', 'run'), SAME,
    ),
    'checkpoints to delete': (
        put('message_hub.runtime_info.keep_ckpt_ids', ['../victim/iter_1', 1], ['x'], 3, [None], [1, 2, 3, 4]), SAME,
    ),
}  # fmt: skip
# For hours, with other defects each time: CHECKPOINT_DEFECTS=100000 CHECKPOINT_SEED=7.
NUMBER = int(os.environ.get('CHECKPOINT_DEFECTS', 0))
SEED = int(os.environ.get('CHECKPOINT_SEED', 0))
DEFECTS = [*OF_BYTES, *OF_CONTENT, *OF_STATE]
STEPS = 2


def train(steps: int, folder: str, first: int = 1, **options: str) -> dict[str, Tensor]:
    """Train from the first step on, each with a better metric than the last; return the weights before it."""
    weights = {}
    functions = {step: validated(CheckpointHook, mIoU=1 + step / 100) for step in range(first + 1, steps + 1)}
    functions[first] = lambda runner: weights.update(copy.deepcopy(runner.model.state_dict()))
    run(folder, steps, functions, interval=1, max_keep_ckpts=1, **options)
    return weights


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a short training."""
    folder = tmp_path_factory.mktemp('trained')
    with configs_formatted_once(), contextlib.chdir(folder):
        train(STEPS, 'run')
    return folder / f'run/iter_{STEPS}.pth'


def resume(path: str) -> dict[str, Tensor]:
    return train(STEPS + 2, 'run', STEPS + 1, resume=path)


def load_from(path: str) -> dict[str, Tensor]:
    return train(2, 'new', load_from=path)


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


@pytest.mark.parametrize('name', DEFECTS)
def test_random_defects(name: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way of loading meets every defect."""
    monkeypatch.chdir(tmp_path)
    whole = torch.load(trained, weights_only=False)
    for number in range(max(NUMBER // len(DEFECTS), len(WAYS))):
        rng = random.Random(f'{SEED} {name} {number}')
        way = [*WAYS][number % len(WAYS)]
        for folder in ('run', 'new', 'victim', 'other'):
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir()
        for file in ('victim/kept.txt', 'victim/best_mIoU_iter_1.pth', 'run/notes.txt', 'run/.mine.part'):
            Path(file).write_text('of the user')
        path = f'run/iter_{STEPS}.pth' if way == 'resume' else 'other/checkpoint.pth'
        if name in OF_BYTES:
            change, expected = OF_BYTES[name]
            Path(path).write_bytes(change(trained.read_bytes(), rng))
        else:
            change, expected = {**OF_CONTENT, **OF_STATE}[name]
            checkpoint = torch.load(trained, weights_only=False)
            change(checkpoint, rng)
            torch.save(checkpoint, path)
        if name in OF_STATE and way != 'resume':
            expected = EITHER if name == 'meta' else SAME
        before = contents(Path())
        weights, error = None, None
        with code_refused(), mmengine_reads_all(), configs_formatted_once():
            try:
                weights = WAYS[way](path)
            except InputError as caught:
                error = str(caught)
        after = contents(Path())
        # The first step of a training supersedes the checkpoint that it resumed from.
        superseded = {path} if way == 'resume' and error is None else set()
        what = f'{way}, {number}: {error}'
        assert {file for file, content in before.items() if after.get(file) != content} <= superseded, what
        assert expected in (EITHER, SAME if error is None else REFUSED), what
        if error is not None:
            assert len(error.splitlines()) == 1, what
            # The first step finds it where the file is not known any more.
            assert path in error or name in ('large values', *OF_STATE), what
        elif name != 'large values':
            tolerance = 0.01 if 'float16' in name else 0
            for entry, value in whole['ema_state_dict' if way == 'resume' else 'state_dict'].items():
                own = weights[entry.removeprefix('module.')]
                assert torch.allclose(own.double(), value.double(), rtol=tolerance, atol=tolerance), what


def test_random_defects_of_a_folder(trained: Path, tmp_path: Path) -> None:
    """The same checkpoint as a folder, as a training with FSDP writes it."""
    sharded, folder = tmp_path / 'sharded', tmp_path / 'iter_2.pth'
    tensors, rest = split(torch.load(trained, weights_only=False))
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(sharded), no_dist=True)
    write_rest(sharded, rest)
    whole = read_checkpoint(str(sharded))['state_dict']
    outcomes = []
    for number in range(max(NUMBER, 120) // 2):
        rng = random.Random(f'{SEED} {number}')
        name = rng.choice(['flipped bits', 'cut off', 'noise in the middle', 'zeros'])
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sharded, folder)
        file = rng.choice(sorted(folder.iterdir()))
        file.write_bytes(OF_BYTES[name][0](file.read_bytes(), rng))
        try:
            weights = weights_of(str(folder), read_checkpoint(str(folder)))
        except InputError as error:
            assert str(folder) in str(error), f'{number}: {name} of {file.name}'
            outcomes.append(REFUSED)
        else:
            same = all(torch.equal(weights[entry], value) for entry, value in whole.items())
            assert same, f'{number}: {name} of {file.name}'
    assert REFUSED in outcomes
