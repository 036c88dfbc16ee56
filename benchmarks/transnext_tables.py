#!/usr/bin/env python
"""Speed as in tables 10 and 11 of the TransNeXt paper, as ratios beside those of its authors.

Both tables are of classifiers at 224 x 224. Table 11: images a second in float32, 64 at a time, on a V100; here
beside Swin-T, which the table has, too. Table 10: what the authors' CUDA operators gain over their formulas in
PyTorch, in images a second in float16, 64 at a time, on a V100, and in time and memory of a training step under
automatic mixed precision, 128 images on each of 8 A100; here what bioattn_mm gains over the formulas of
`formulas.py`. GPUs and implementations are others, so that ratios compare, and times do not.

Weights are random. A training step is forward pass, backward pass and fused AdamW, without stochastic depth, in
float16 with a scaled loss (on a CPU all is float32); memory is its peak. The fastest run counts. PyTorch's defaults
decide how matrices are multiplied: convolutions in float32 may use TF32 on GPUs that have it, which a V100 has not.
"""

import argparse
from collections.abc import Callable
from functools import partial

import timm
import torch
import torch.nn.functional as F
from formulas import unique_coordinates, written_out
from measure import Measurement, autocast, make_parser, measure, print_header, print_row, print_title, time_text
from torch import Tensor

REFERENCE = 'Swin-T'
# The names of timm.
MODELS = {
    REFERENCE: 'swin_tiny_patch4_window7_224',
    'ConvNeXt-T': 'convnext_tiny',
    'MaxViT-T': 'maxvit_tiny_tf_224',
    'TransNeXt-Micro': 'transnext_micro',
    'TransNeXt-Tiny': 'transnext_tiny',
    'TransNeXt-Small': 'transnext_small',
    'TransNeXt-Base': 'transnext_base',
}
# The authors' numbers. Table 11: images a second.
TABLE_11 = {REFERENCE: 790, 'ConvNeXt-T': 779, 'MaxViT-T': 459, 'TransNeXt-Tiny': 413}
# Table 10, by CUDA and by PyTorch: images a second, seconds of a training step, GB of its memory.
TABLE_10 = {
    'TransNeXt-Micro': ((1117, 701), (0.218, 0.401), (14.8, 17.8)),
    'TransNeXt-Tiny': ((756, 471), (0.315, 0.609), (23.2, 27.3)),
    'TransNeXt-Small': ((394, 246), (0.595, 1.161), (41.6, 49.3)),
    'TransNeXt-Base': ((297, 186), (0.771, 1.568), (58.1, 68.6)),
}


def main() -> None:
    parser = make_parser(__doc__, repeats=5)
    parser.add_argument('--tables', type=int, nargs='+', default=[11, 10], choices=[10, 11], help='default: both')
    parser.add_argument(
        '--models', nargs='+', default=list(MODELS), choices=MODELS, metavar='NAME', help='default: all'
    )
    parser.add_argument('--batch', type=int, default=64, help='images at a time (default: %(default)s)')
    parser.add_argument('--training-batch', type=int, default=128, help='images of a step (default: %(default)s)')
    args = parser.parse_args()
    if REFERENCE not in args.models:
        parser.error(f'the ratios are to {REFERENCE}: name it in --models')

    print_title('224 x 224', args)
    with torch.device(args.device):
        for table in args.tables:
            (table_10 if table == 10 else table_11)(args)
            print()


def table_11(args: argparse.Namespace) -> None:
    """Images a second in float32."""
    head = ('table 11, float32', 'images a second', f'to {REFERENCE}', "the authors', V100", f'to {REFERENCE}')
    print_header(*head)
    first = None
    for name in filter(args.models.__contains__, TABLE_11):
        speed = attempt(args, partial(inference, args, name, torch.float32))
        first = first or speed
        authors = (TABLE_11[name], ratio(TABLE_11[name], TABLE_11[REFERENCE]))
        print_row(name, count(speed), ratio(speed, first), *authors)


def table_10(args: argparse.Namespace) -> None:
    """Images a second in float16, time and memory of a training step, with the gains over the formulas."""
    half = torch.float16 if args.device == 'cuda' else torch.float32  # CPUs without instructions emulate others
    name = str(half).removeprefix('torch.')
    columns = ('to formulas', "the authors' to theirs")
    head = (f'table 10, {name}', 'images a second', f'to {REFERENCE}', *columns)
    head += ('training step', f'to {REFERENCE}', *columns, 'memory', f'to {REFERENCE}', *columns)
    print_header(*head)
    first = None
    for name in filter(args.models.__contains__, MODELS):
        ours = speeds_and_memory(args, name, half)
        first = first or ours
        formulas = authors = (None, None, None)
        if name in TABLE_10:
            with written_out('transnext'):
                unique_coordinates.cache_clear()
                formulas = speeds_and_memory(args, name, half)
            authors = [ratio(*pair) for pair in TABLE_10[name]]
        texts = (count(ours[0]), ours[1] and time_text(ours[1]), ours[2] and f'{ours[2]:.0f} MiB')
        cells = []
        for index, text in enumerate(texts):
            gains = [ratio(ours[index], other[index]) for other in (first, formulas)]
            cells += [text or 'out of memory', *gains, authors[index] or '']
        print_row(name, *cells)


def speeds_and_memory(args: argparse.Namespace, name: str, dtype: torch.dtype) -> tuple:
    """Images a second, seconds of a training step, and MiB of its memory; None where memory does not suffice."""
    step = attempt(args, lambda: training(args, name, dtype))
    speed = attempt(args, lambda: inference(args, name, dtype))
    return speed, step and step.seconds, step and step.mebibytes


def attempt(args: argparse.Namespace, function: Callable[[], object]) -> object | None:
    """What a function returns; None if there is too little memory."""
    try:
        return function()
    except torch.OutOfMemoryError:
        return None
    finally:
        if args.device == 'cuda':
            torch.cuda.empty_cache()


def inference(args: argparse.Namespace, name: str, dtype: torch.dtype) -> float:
    """Images a second."""
    model, images = timm.create_model(MODELS[name]).eval(), torch.randn(args.batch, 3, 224, 224)

    @torch.no_grad()
    def run() -> None:
        with autocast(args.device, dtype):
            model(images)

    return args.batch / timed(args, run).seconds


def training(args: argparse.Namespace, name: str, dtype: torch.dtype) -> Measurement:
    """Time and memory of a step."""
    model = timm.create_model(MODELS[name]).train()
    images, labels = torch.randn(args.training_batch, 3, 224, 224), torch.arange(args.training_batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    scaler = torch.amp.GradScaler(args.device, enabled=dtype == torch.float16)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(args.device, dtype):
            loss: Tensor = F.cross_entropy(model(images).float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    result = timed(args, step)
    # The measurement is of what comes on top of weights, optimizer's state and images.
    kept = [*model.parameters(), *model.buffers(), images]
    kept += [value for state in optimizer.state.values() for value in state.values()]
    result.mebibytes += sum(tensor.nbytes for tensor in kept) / 2**20
    return result


def timed(args: argparse.Namespace, run: Callable[[], None]) -> Measurement:
    for _ in range(2):  # choices of algorithms, the memory that PyTorch keeps
        run()
    return measure(run, args.device, args.repeats)


def count(speed: float | None) -> str:
    return 'out of memory' if speed is None else f'{speed:.4g}'


def ratio(value: float | None, other: float | None) -> str:
    return f'{value / other:.2f}' if value and other else ''


if __name__ == '__main__':
    main()
