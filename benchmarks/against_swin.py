#!/usr/bin/env python
"""TransNeXt-T beside timm's Swin-T and ConvNeXt-T: time of a pass, and time per multiply-add, in one process.

`--models` names others, such as `ConViT-S GABViT-S ViT-S --reference ViT-S`.

All are backbones with the features of four stages, random weights. The models take turns; the fastest run of each
counts. "Products alone" are the linear layers and convolutions of the forward pass, without what is between them and
without TransNeXt's operators: what remains when everything else is free. `--cpu-time` counts the seconds of the
processor instead of the clock's, for a machine with other work. Freed memory is kept for all models, as in the tools.

On a GPU there are also the kernels that were launched in a pass, the time in which one of them ran, and the most
memory that PyTorch held: where the time is longer than that of the kernels, the GPU waits for launches. `--compile`
and `--cuda-graphs` run all three models as these options of tools/train.py do. `--by-kernel` adds what the last pass
launches most often: casts and copies, sums for biases, additions, products.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from functools import partial

import timm
import torch
import torch.nn.functional as F
from measure import (
    autocast,
    clock_of,
    make_parser,
    print_header,
    print_row,
    print_title,
    sides_of,
    take_turns,
    time_text,
)
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bioattn_mm import VARS, ConViT, GABSwin, GABViT, PerViT, TransNeXt
from bioattn_mm.analysis.flops import count_multiply_adds
from bioattn_mm.training.compilation import compile_parts
from bioattn_mm.training.cuda_graphs import FeatureGraphs

TIMM = {
    'Swin-T': 'swin_tiny_patch4_window7_224',
    'Swin-S': 'swin_small_patch4_window7_224',
    'ConvNeXt-T': 'convnext_tiny',
    'ViT-S': 'vit_small_patch16_224',
}
OURS = {
    'TransNeXt-T': partial(TransNeXt, 'tiny'),
    'ConViT-S': partial(ConViT, 'small'),
    'PerViT-T': partial(PerViT, 'tiny'),
    'PerViT-S': partial(PerViT, 'small'),
    'GABViT-S': partial(GABViT, 'small'),
    'GABSwin-S': partial(GABSwin, 'small'),
    'RVT-S with VARS-SD': partial(VARS, 'rvt-small', 'vars_sd'),
}
DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16}
MOST_COMMON = 15


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__, repeats=5, cpu_time=True)
    parser.add_argument('--sizes', nargs='+', default=['512x512', '800x1344'], help='height x width, in pixels')
    parser.add_argument('--batch', type=int, default=1, help='images (default: %(default)s)')
    names = dict(nargs='+', choices=[*OURS, *TIMM], metavar='NAME')
    parser.add_argument(
        '--models', **names, default=['TransNeXt-T', 'Swin-T', 'ConvNeXt-T'], help=f'of {", ".join([*OURS, *TIMM])}'
    )
    parser.add_argument('--reference', default='Swin-T', help='the model that the others are compared with')
    parser.add_argument(
        '--dtypes', nargs='+', default=list(DTYPES), choices=DTYPES, help='of autocast; float32: none'
    )
    parser.add_argument('--no-training', action='store_true', help='measure the forward pass only')
    parser.add_argument(
        '--compile',
        nargs='?',
        const='inductor',
        metavar='BACKEND',
        help='through torch.compile, for each size, by this backend (without a value: %(const)s)',
    )
    parser.add_argument('--cuda-graphs', action='store_true', help='as CUDA graphs; needs --device cuda')
    parser.add_argument(
        '--by-kernel', action='store_true', help='kernels by name; on a CPU operators, without those that they call'
    )
    args = parser.parse_args()
    if args.reference not in args.models:
        parser.error(f'--reference {args.reference} is not among --models {" ".join(args.models)}')
    if args.cuda_graphs and args.device != 'cuda':
        parser.error('--cuda-graphs needs --device cuda')
    return args


def main() -> None:
    args = parse_args()
    # After PyTorch, so that OpenMP's threads still spin: the machine has nothing else to do.
    from bioattn_mm.cli.threads_and_memory import keep_freed_memory

    keep_freed_memory()
    means = f', compile by {args.compile}' * bool(args.compile) + ', cuda graphs' * args.cuda_graphs
    print_title(f'batch {args.batch}{means}', args)
    columns = ('input', 'pass', 'dtype', 'model', 'GMAC an image', 'time', f'to {args.reference}', 'per multiply-add')
    of_gpu = ('kernels', 'their time', 'memory') if args.device == 'cuda' else ()
    print_header(*columns, 'products alone', *of_gpu)
    last: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for size in args.sizes:
        height, width = sides_of(size)
        image = torch.randn(args.batch, 3, height, width, device=args.device)
        models = {name: model.to(args.device) for name, model in make_models(args.models, (height, width)).items()}
        counts = {name: count_multiply_adds(model.eval(), image[:1]) for name, model in models.items()}
        for model in models.values():
            if args.compile:
                compile_parts(model, args.compile, dynamic=False)
            if args.cuda_graphs:
                model.extract_feat = FeatureGraphs(model)
        for dtype in map(DTYPES.get, args.dtypes):
            for training in (False,) if args.no_training else (False, True):
                name = 'forward + backward' if training else 'forward'
                best = measure(models, image, training, dtype, args)
                for model, took in best.items():
                    ratio = took / best[args.reference]
                    work = counts[model][''] / counts[args.reference]['']
                    cells = (f'{counts[model][""] / 1e9:.1f}', time_text(took), f'{ratio:.2f}', f'{ratio / work:.2f}')
                    alone = '' if training else time_text(products_alone(models[model], image, dtype, args))
                    cells = (*cells, alone)
                    if args.device == 'cuda':
                        torch.cuda.reset_peak_memory_stats()
                    if args.by_kernel or args.device == 'cuda':
                        kernels = kernels_of(models[model].train(training), image, training, dtype)
                        last[size, model] = kernels
                    if args.device == 'cuda':
                        memory = f'{torch.cuda.max_memory_allocated() / 2**20:.0f} MiB'
                        cells += (len(kernels), time_text(sum(seconds for _, seconds in kernels)), memory)
                    print_row(f'{height} x {width}', name, str(dtype).removeprefix('torch.'), model, *cells)
    if args.by_kernel:
        print_by_kernel(last)


def make_models(names: list[str], size: tuple[int, int]) -> dict[str, nn.Module]:
    models = {}
    for name in names:
        if name in OURS:
            models[name] = Model(OURS[name]())
        else:
            sized = {} if name == 'ConvNeXt-T' else dict(img_size=size)
            models[name] = Model(timm.create_model(TIMM[name], features_only=True, **sized))
    return models


class Model(nn.Module):
    """A backbone where a model of mmdet and mmseg has it."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def extract_feat(self, images: Tensor) -> list[Tensor] | tuple[Tensor, ...]:
        return self.backbone(images)

    def forward(self, images: Tensor) -> list[Tensor] | tuple[Tensor, ...]:
        return self.extract_feat(images)


def measure(
    models: dict[str, nn.Module], image: Tensor, training: bool, dtype: torch.dtype, args: argparse.Namespace
) -> dict[str, float]:
    """Seconds of the fastest run of each model, after two that do not count: the second one captures CUDA graphs."""
    passes = {name: partial(run, model.train(training), image, training, dtype) for name, model in models.items()}
    take_turns(passes, args.device, 2, clock_of(args))
    return take_turns(passes, args.device, args.repeats, clock_of(args))


def run(model: nn.Module, image: Tensor, training: bool, dtype: torch.dtype) -> None:
    with torch.set_grad_enabled(training):
        model.zero_grad()
        with autocast(image.device.type, dtype):
            features = model(image)
        if training:
            sum(feature.float().mean() for feature in features).backward()


def kernels_of(model: nn.Module, image: Tensor, training: bool, dtype: torch.dtype) -> list[tuple[str, float]]:
    """Names and seconds of the kernels of a pass; on a CPU of its operators, without those that they call."""
    kind = 'CUDA' if image.is_cuda else 'CPU'
    with torch.profiler.profile(
        activities=[getattr(torch.profiler.ProfilerActivity, kind)], acc_events=True
    ) as profile:
        run(model, image, training, dtype)
        if image.is_cuda:
            torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == getattr(torch.autograd.DeviceType, kind)]
    times = [event.self_device_time_total if image.is_cuda else event.self_cpu_time_total for event in events]
    return [(event.name, microseconds / 1e6) for event, microseconds in zip(events, times)]


def print_by_kernel(last: dict[tuple[str, str], list[tuple[str, float]]]) -> None:
    """A table of the kernels that are launched most often."""
    print()
    print_header('input', 'model', 'kernel', 'number', 'their time')
    for (size, model), kernels in last.items():
        seconds = Counter()
        for name, took in kernels:
            seconds[name] += took
        for name, number in Counter(name for name, _ in kernels).most_common(MOST_COMMON):
            print_row(size, model, name.replace('|', '/')[:150], number, time_text(seconds[name]))


class Products(TorchFunctionMode):
    """Context that records the calls of linear layers and convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_function__(
        self, function: Callable, types: list, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if function in (F.linear, F.conv2d):
            self.calls.append((function, args, kwargs or {}))
        return function(*args, **kwargs or {})


def products_alone(model: nn.Module, image: Tensor, dtype: torch.dtype, args: argparse.Namespace) -> float:
    """Seconds of the linear layers and convolutions of a forward pass, one after the other and nothing between."""
    with torch.no_grad(), Products() as products:
        model.eval().backbone.forward(image)  # neither compiled nor captured
    calls = [
        (function, [x.to(dtype) if isinstance(x, Tensor) else x for x in inputs], options)
        for function, inputs, options in products.calls
    ]

    @torch.no_grad()
    def run_all() -> None:
        for function, inputs, options in calls:
            function(*inputs, **options)

    return take_turns({'': run_all}, args.device, args.repeats, clock_of(args))['']


if __name__ == '__main__':
    main()
