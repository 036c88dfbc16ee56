#!/usr/bin/env python
"""A whole training step of UperNet by tools/train.py: what of it computes, waits for data, and runs hooks.

Each training runs by itself, on generated images that the config's pipeline resizes and crops as it does ADE20K's,
with random weights. The times are medians of those that it writes to `steps.jsonl`, without the first step. Pictures
of the miniature are smaller files than photographs, so that a loader of photographs waits longer (see loader.py).
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measure import print_header, print_row, time_text

from bioattn_mm.data.mini import make_mini_datasets
from bioattn_mm.training.health import health, is_step, read_lines

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
    args = parser.parse_args()

    print(f'batch {args.batch}, crops of {args.crop} x {args.crop}, {args.steps} steps, {args.workers} workers\n')
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
    options = [
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
    words = [ROOT / 'tools/train.py', ROOT / f'configs/{config}.py', *way, '--work-dir', work_dir]
    run = subprocess.run(
        [sys.executable, *map(str, words), '--cfg-options', *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    sys.stderr.write(run.stdout)
    return (run.stdout.strip().splitlines() or ['no message'])[-1].replace('|', '/') if run.returncode else None


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
