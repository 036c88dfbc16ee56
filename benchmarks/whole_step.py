#!/usr/bin/env python
"""A whole training step of UperNet by tools/train.py: what of it computes, waits for data, and runs hooks.

With --by-part, a step of any config on ADE20K or COCO by itself: time of backbone, neck, heads, losses and optimizer,
and how often the processor waits for results of a GPU, which is counted without one, too.

Each training runs by itself, on generated images that the config's pipeline resizes and crops as it does ADE20K's,
with random weights. The times are medians of those that it writes to `steps.jsonl`, without the first step. Pictures
of the miniature are smaller files than photographs, so that a loader of photographs waits longer (see loader.py).
"""

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from measure import PeakMemory, print_header, print_row, time_text
from mmengine.config import Config, DictAction
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bioattn_mm.data.mini import make_mini_datasets
from bioattn_mm.training.health import health, is_step, read_lines
from bioattn_mm.training.runner import build_runner, now

ROOT = Path(__file__).parents[1]
CONFIGS = ('transnext/upernet_tiny_ade20k', 'baselines/upernet_swin_tiny_ade20k')
# The ways of training that are compared: options of tools/train.py.
WAYS = ('', '--amp bfloat16', '--amp bfloat16 --cuda-graphs', '--amp bfloat16 --compile')
PIPELINE = 'train_dataloader.dataset.pipeline'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--configs', nargs='+', default=CONFIGS, help='of UperNet on ADE20K, below configs/')
    parser.add_argument(
        '--ways', nargs='+', default=WAYS, metavar='OPTIONS', help=f'of tools/train.py (default: {", ".join(WAYS)})'
    )
    parser.add_argument('--batch', type=int, default=8, help='images a step (default: %(default)s)')
    parser.add_argument('--crop', type=int, default=512, help='pixels a side of a crop (default: %(default)s)')
    parser.add_argument('--steps', type=int, default=60, help='of each training (default: %(default)s)')
    parser.add_argument('--workers', type=int, default=8, help='processes that load data (default: %(default)s)')
    parser.add_argument('--by-part', action='store_true', help='the parts of a step, without loader and hooks')
    args = parser.parse_args()

    print(f'batch {args.batch}, crops of {args.crop} x {args.crop}, {args.steps} steps, {args.workers} workers\n')
    if args.by_part:
        by_part(args)
        return
    print_header('config', 'options', 'step', 'images a second', 'computes', 'waits for data', 'hooks', 'peak memory')
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        # 120 images, which are at hand in the memory of the operating system.
        data = make_mini_datasets(Path(folder) / 'data', 120, 1, progress=False, names=['ade20k'])['ade20k']
        for config in args.configs:
            for number, way in enumerate(args.ways):
                work_dir = Path(folder) / 'runs' / str(number) / config
                problem = train(config, way.split(), work_dir, data, args)
                failed |= problem is not None
                cells = [f'failed: {problem}'] if problem else step_of(work_dir)
                print_row(config, way or 'float32', *cells)
    sys.exit(failed)


def train(config: str, way: list[str], work_dir: Path, data: Path, args: argparse.Namespace) -> str | None:
    """Run a training; the last line of what it printed if it failed, else None."""
    words = [ROOT / 'tools/train.py', ROOT / f'configs/{config}.py', *way, '--work-dir', work_dir]
    run = subprocess.run(
        [sys.executable, *map(str, words), '--cfg-options', *options(data, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    sys.stderr.write(run.stdout)
    return (run.stdout.strip().splitlines() or ['no message'])[-1].replace('|', '/') if run.returncode else None


def options(data: Path, args: argparse.Namespace) -> list[str]:
    """Of a config on ADE20K, for tools/train.py."""
    return [
        'model.backbone.init_cfg=None',
        f'train_dataloader.dataset.data_root={data}',
        f'val_dataloader.dataset.data_root={data}',
        f'val_dataloader.dataset.pipeline.1.scale=({4 * args.crop},{args.crop})',
        f'train_dataloader.batch_size={args.batch}',
        f'{PIPELINE}.2.scale=({4 * args.crop},{args.crop})',
        f'{PIPELINE}.3.crop_size=({args.crop},{args.crop})',
        f'model.data_preprocessor.size=({args.crop},{args.crop})',
        f'train_cfg.max_iters={args.steps}',
        f'train_cfg.val_interval={args.steps}',
        *(f'{mode}_dataloader.num_workers={args.workers}' for mode in ('train', 'val')),
        *(f'{mode}_dataloader.persistent_workers={args.workers > 0}' for mode in ('train', 'val')),
    ]


def by_part(args: argparse.Namespace) -> None:
    """Print the time of each part of a step; its backward pass is divided at the features of the backbone."""
    parts = 'preprocessor', 'backbone', 'neck', 'heads', 'losses', 'backward to the features', 'backward', 'optimizer'
    print_header('config', 'options', *parts, 'sum', 'peak memory', 'waits')
    for name in args.configs:
        for way in args.ways:
            with tempfile.TemporaryDirectory() as folder:
                steps, *others = steps_of(name, '--amp bfloat16' in way, Path(folder), args)
            medians = [median(step[part] for step in steps) for part in parts]
            print_row(name, way or 'float32', *map(time_text, (*medians, sum(medians))), *others)


def steps_of(name: str, amp: bool, folder: Path, args: argparse.Namespace) -> tuple[list[dict[str, float]], str, int]:
    """Seconds of the parts of each step of a batch but the first, memory beyond the model's, and waits of a step."""
    kind = 'ade20k' if 'ade20k' in name else 'coco'
    data = make_mini_datasets(folder, args.batch, 1, progress=False, names=[kind])[kind]
    config = Config.fromfile(ROOT / f'configs/{name}.py')
    if kind == 'ade20k':
        pairs = (option.partition('=') for option in options(data, args))
        config.merge_from_dict({key: DictAction._parse_iterable(value) for key, _, value in pairs})
    else:
        config.train_dataloader.update(batch_size=args.batch)
        config.train_dataloader.dataset.data_root = f'{data}/'
    config.train_dataloader.update(num_workers=0, persistent_workers=False)
    config.visualizer.vis_backends = None
    runner = build_runner(
        Config({**config, 'work_dir': str(folder), 'log_level': 'ERROR', 'randomness': dict(seed=0)})
    )
    batch = next(iter(runner.build_dataloader(config.train_dataloader)))
    optimizer, model = runner.build_optim_wrapper(config.optim_wrapper), runner.model.train()
    device = next(model.parameters()).device
    spent: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        start = now()
        yield
        spent[part] += now() - start

    for module in model.modules():
        if hasattr(module, 'loss_by_feat'):
            module.loss_by_feat = timed('losses')(module.loss_by_feat)
    if getattr(model, 'neck', None) is not None:
        model.neck.forward = timed('neck')(model.neck.forward)

    def step() -> dict[str, float]:
        spent.clear()
        with timed('preprocessor'):
            inputs = model.data_preprocessor(batch, training=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            with timed('backbone'):
                features = model.backbone(inputs['inputs'])
            leaves = tuple(feature.detach().requires_grad_() for feature in features)
            with patch.dict(model._modules, backbone=Given(leaves)), timed('heads'):
                losses = model.loss(inputs['inputs'], inputs['data_samples'])
        spent['heads'] -= spent['neck'] + spent['losses']
        with timed('backward to the features'):
            model.parse_losses(losses)[0].backward()
        with timed('backward'):
            used = [(of, leaf.grad) for of, leaf in zip(features, leaves, strict=True) if leaf.grad is not None]
            torch.autograd.backward(*zip(*used, strict=True))
        with timed('optimizer'):
            optimizer.step()
            optimizer.zero_grad()
        return defaultdict(float, spent)

    with PeakMemory(device.type) as peak:
        steps = [step() for _ in range(args.steps)]
    with WaitsInOperators() as in_operators, WaitsInMethods() as in_methods:
        step()
    return steps[1:], f'{peak.mebibytes:.0f} MiB', in_operators.number + in_methods.number


class WaitsInOperators(TorchDispatchMode):
    """Counts operators whose result, or its size, depends on elements: the processor waits until a GPU has them."""

    NAMES = ('_local_scalar_dense', 'nonzero', 'masked_select', '_unique2', 'repeat_interleave.Tensor')
    number = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        name = func.name().removeprefix('aten::')
        is_masked = name.startswith(('index.', 'index_put')) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.number += is_masked or name in self.NAMES
        return func(*args, **(kwargs or {}))


class WaitsInMethods(TorchFunctionMode):
    """Counts copies to the host."""

    number = 0

    def __torch_function__(
        self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        self.number += getattr(func, '__name__', '') in ('cpu', 'tolist')
        return func(*args, **(kwargs or {}))


class Given(nn.Module):
    """A backbone whose features are there."""

    def __init__(self, features: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.features = features

    def forward(self, _: Tensor) -> tuple[Tensor, ...]:
        return self.features


def step_of(work_dir: Path) -> tuple[str, ...]:
    """The cells of a training that has ended."""
    lines = list(read_lines(work_dir / 'steps.jsonl'))
    run = health(lines)
    steps = [line for line in lines if is_step(line)][1:]
    # Not their shares of the run, of which saving the weights at its end would be the largest.
    waits, hooks = (median(step[key] for step in steps) for key in ('data_time', 'hook_time'))
    computes = median(step['time'] - step['data_time'] - step['hook_time'] for step in steps)
    parts = map(time_text, (computes, waits, hooks))
    return time_text(run['step_time']), f'{run["images_per_second"]:.3g}', *parts, f'{run["peak_memory"]} MiB'


if __name__ == '__main__':
    main()
