"""A table of defects of checkpoints: what a disk, another program or somebody hostile does to them."""

import io
import random
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch

# What a defect must lead to: the same weights, a refusal, or one of the two.
SAME, REFUSED, EITHER = 'same', 'refused', 'either'


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 8, 64))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def noise(content: bytes, rng: random.Random) -> bytes:
    length = min(100_000, len(content) // 2)
    start = (len(content) - length) // 2
    return content[:start] + rng.randbytes(length) + content[start + length :]


def without_checksums(content: bytes, rng: random.Random) -> bytes:
    checkpoint = torch.load(io.BytesIO(content), weights_only=False)
    torch.serialization.set_crc32_options(False)
    try:
        file = io.BytesIO()
        torch.save(checkpoint, file)
    finally:
        torch.serialization.set_crc32_options(True)
    return file.getvalue()


def older_format(content: bytes, rng: random.Random) -> bytes:
    file = io.BytesIO()
    torch.save(torch.load(io.BytesIO(content), weights_only=False), file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def without_a_member(content: bytes, rng: random.Random) -> bytes:
    """A zip file that is whole, with all checksums, and lacks a tensor."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as members, zipfile.ZipFile(file, 'w') as kept:
        left_out = rng.choice([name for name in members.namelist() if '/data/' in name])
        for name in members.namelist():
            if name != left_out:
                kept.writestr(name, members.read(name))
    return file.getvalue()


# Of the bytes of a file.
OF_BYTES: dict[str, tuple[Callable[[bytes, random.Random], bytes], str]] = {
    'flipped bits': (flip_bits, EITHER),
    'cut off': (lambda content, rng: content[: rng.randrange(len(content))], REFUSED),
    'begins later': (lambda content, rng: content[rng.randrange(1, len(content)) :], REFUSED),
    'noise in the middle': (noise, REFUSED),
    'noise at the end': (lambda content, rng: content + rng.randbytes(rng.choice((1, 1000, 100_000))), EITHER),
    'a web page': (lambda content, rng: b'<!DOCTYPE html><html><body>404</body></html>', REFUSED),
    'zeros': (lambda content, rng: bytes(len(content)), REFUSED),
    'without checksums': (without_checksums, SAME),
    'the older format': (older_format, SAME),
    'without a member': (without_a_member, REFUSED),
}


def changed(change: Callable[[torch.Tensor], object]) -> Callable[[dict, random.Random], None]:
    """A defect that replaces one of the weights."""

    def change_one(checkpoint: dict, rng: random.Random) -> None:
        weights = checkpoint['state_dict']
        name = rng.choice(
            [name for name, value in weights.items() if value.is_floating_point() and value.numel() > 1]
        )
        weights[name] = change(weights[name].clone())

    return change_one


def all_changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict, random.Random], None]:
    """A defect that replaces all weights."""

    def change_all(checkpoint: dict, rng: random.Random) -> None:
        for name, value in checkpoint['state_dict'].items():
            checkpoint['state_dict'][name] = change(value)

    return change_all


def with_value(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def put(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[-1] = value
        return tensor

    return put


def other_names(checkpoint: dict, rng: random.Random) -> None:
    weights = checkpoint['state_dict']
    checkpoint['state_dict'] = {f'encoder.layers.{index}': value for index, value in enumerate(weights.values())}


def without_one(checkpoint: dict, rng: random.Random) -> None:
    del checkpoint['state_dict'][rng.choice(list(checkpoint['state_dict']))]


def with_module(checkpoint: dict, rng: random.Random) -> None:
    weights = checkpoint['state_dict']
    checkpoint['state_dict'] = OrderedDict((f'module.{name}', value) for name, value in weights.items())


def under_model(checkpoint: dict, rng: random.Random) -> None:
    """As the authors of backbones write it; mmengine does not find the weights there."""
    checkpoint['model'] = checkpoint.pop('state_dict')


def put(path: str, *values: object) -> Callable[[dict, random.Random], None]:
    """A defect that sets an entry of a checkpoint, with dots between keys, to one of several values."""

    def put_one(checkpoint: dict, rng: random.Random) -> None:
        *parents, last = path.split('.')
        node = checkpoint
        for name in parents:
            node = node[int(name) if isinstance(node, list) else name]
        node[last] = rng.choice(values)

    return put_one


# Of what is in a file.
OF_CONTENT: dict[str, tuple[Callable[[dict, random.Random], None], str]] = {
    'int8': (changed(lambda x: x.to(torch.int8)), REFUSED),
    'complex': (changed(lambda x: torch.complex(x, x)), REFUSED),
    'NaN': (changed(with_value(float('nan'))), REFUSED),
    'infinite': (changed(with_value(float('-inf'))), REFUSED),
    'large values': (changed(with_value(3e38)), EITHER),
    'a list': (changed(lambda x: x.tolist()), REFUSED),
    'another shape': (changed(lambda x: x[..., None]), REFUSED),
    'an array': (changed(lambda x: x.numpy()), REFUSED),
    'not contiguous': (changed(lambda x: torch.stack([x, x], -1)[..., 0]), SAME),
    'a parameter': (changed(torch.nn.Parameter), SAME),
    'float64': (all_changed(lambda x: x.double() if x.is_floating_point() else x), SAME),
    'bfloat16': (all_changed(lambda x: x.bfloat16() if x.is_floating_point() else x), SAME),
    'float16 everywhere': (all_changed(lambda x: x.half()), SAME),
    'other names': (other_names, REFUSED),
    'a weight missing': (without_one, REFUSED),
    'a wrapper': (with_module, SAME),
    'another key': (under_model, SAME),
    'no state dict': (put('state_dict', None, [], 'weights', {}, torch.zeros(3)), REFUSED),
}
# Of the state of the training, which is of no concern for predictions and new trainings.
OF_STATE: dict[str, tuple[Callable[[dict, random.Random], None], str]] = {
    'meta': (put('meta', None, [], 'x', {}), REFUSED),
    'a program': (put('meta.config', "import pathlib\npathlib.Path('victim', 'kept.txt').unlink()\n"), SAME),
    'no optimizer': (lambda checkpoint, rng: checkpoint.pop('optimizer'), REFUSED),
    'optimizer': (put('optimizer', None, [], 'x'), REFUSED),
    'learning rate': (
        lambda checkpoint, rng: checkpoint['optimizer']['param_groups'][0].update(lr=float('nan')), REFUSED,
    ),
    'momentum that is NaN': (
        lambda checkpoint, rng: next(iter(checkpoint['optimizer']['state'].values()))['exp_avg'].fill_(float('nan')),
        REFUSED,
    ),
    'momentum of another shape': (
        lambda checkpoint, rng: next(iter(checkpoint['optimizer']['state'].values())).update(exp_avg=torch.zeros(7)),
        REFUSED,
    ),
    'message hub': (put('message_hub', None, [], 'x'), REFUSED),
    'a path to delete': (
        put('message_hub.runtime_info.best_ckpt', 'victim', 'victim/kept.txt', 'victim/best_mIoU_iter_1.pth',
            'run/../victim', 'run/notes.txt', 'run'), SAME,
    ),
    'checkpoints to delete': (
        put('message_hub.runtime_info.keep_ckpt_ids', ['../victim/iter_1', 1], ['x'], 3, [None], [1, 2, 3, 4]), SAME,
    ),
}  # fmt: skip


def apply(name: str, source: Path, target: Path, rng: random.Random) -> str:
    """Write a checkpoint with a defect; return what it must lead to, if the state of the training is read."""
    if name in OF_BYTES:
        change, expected = OF_BYTES[name]
        target.write_bytes(change(source.read_bytes(), rng))
        return expected
    change, expected = {**OF_CONTENT, **OF_STATE}[name]
    checkpoint = torch.load(source, weights_only=False)
    change(checkpoint, rng)
    torch.save(checkpoint, target)
    return expected
