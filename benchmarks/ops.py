#!/usr/bin/env python
"""Aggregated attention at TransNeXt-Tiny's stages: fused, in separate operators, and in PyTorch, in one process.

`fused` is `bioattn_mm.ops.aggregated_attention` compiled for the device, `reference` the same in PyTorch. `unfused`
runs one operator for each step: logits of the window, logits of the pooled grid, softmax over both, and two weighted
sums; on a GPU those of the window have one thread for each element. The floor is the time that the device takes to
move the inputs and outputs once or to do the multiplications, whichever is longer, at rates that are measured first.

--cpu-time counts the seconds of the processor, of all threads, for a machine that does other things, too. --baselines
adds FlexAttention, with the same result, compiled and eager, where all weights exist at once, and PyTorch's formulas
through torch.compile. A baseline that does not run says why.
"""

import argparse
from collections.abc import Callable
from functools import partial
from math import ceil

import torch
from baselines import compiled_formulas, flex_aggregated_attention, unfused_attention
from measure import (
    Measurement,
    clock_of,
    make_parser,
    measure,
    measure_with,
    print_header,
    print_row,
    print_title,
    sides_of,
    time_text,
)
from torch import Tensor

from bioattn_mm.ops import AggregatedAttentionInputs, aggregated_attention
from bioattn_mm.ops.backends import HOW_TO_BUILD, available_backends
from bioattn_mm.ops.samples import OPERATORS

# (stride of the tokens, heads, stride of the pooled grid in tokens); the fourth stage has no window.
STAGES = {1: (4, 3, 8), 2: (8, 6, 4), 3: (16, 12, 2)}
CHANNELS = 24  # the channels of a head
WINDOW_SIZE = 3
BASELINES = {
    'FlexAttention': flex_aggregated_attention,
    'FlexAttention-eager': partial(flex_aggregated_attention, compiled=False),
    'formulas-compiled': compiled_formulas,
}
DTYPES = dict(cpu=['float32'], cuda=['float32', 'float16', 'bfloat16'])
TOLERANCE = dict(float32=1e-4, float16=2e-2, bfloat16=1e-1)
SECONDS_PER_RUN = 0.05  # a run repeats short calls for so long


def main() -> None:
    parser = make_parser(__doc__, repeats=5, cpu_time=True)
    parser.set_defaults(device='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument(
        '--dtypes', nargs='+', choices=list(TOLERANCE), help='default: float32, on a GPU float16 and bfloat16, too'
    )
    parser.add_argument('--inputs', nargs='+', default=['224', '512', '800x1333'], help='pixels: N or HEIGHTxWIDTH')
    parser.add_argument('--stages', type=int, nargs='+', default=list(STAGES), choices=list(STAGES))
    parser.add_argument('--batch', type=int, default=1, help='images (default: 1)')
    parser.add_argument('--no-training', action='store_true', help='measure the forward pass only')
    parser.add_argument(
        '--baselines',
        nargs='*',
        choices=list(BASELINES),
        help='default: on a GPU all; on a CPU none, because compiling FlexAttention takes a minute a size there',
    )
    args = parser.parse_args()
    if args.baselines is None:
        args.baselines = list(BASELINES) if args.device == 'cuda' else []
    fused = available_backends(torch.device(args.device))[0]
    if fused == 'reference':
        parser.error(f'no operators compiled for {args.device}; {HOW_TO_BUILD}')
    if args.cpu_time and args.device == 'cuda':
        parser.error('--cpu-time needs --device cpu')

    dtypes = args.dtypes or DTYPES[args.device]
    print_title(f'TransNeXt-Tiny, batch {args.batch}', args)
    bandwidth = copy_bandwidth(args)
    rates = {dtype: matmul_rate(args, dtype) for dtype in dtypes}
    print(f'- copies: {bandwidth / 1e9:.3g} GB/s, read and written')
    print(''.join(f'- products of {dtype} matrices: {rate / 1e12:.3g} TFLOP/s\n' for dtype, rate in rates.items()))
    ratios = ('fused / floor', 'unfused / fused', 'reference / fused', 'less memory than unfused')
    print_header(
        'input', 'stage', 'dtype', 'pass', 'floor', 'fused', 'unfused', 'reference', *ratios, *args.baselines
    )
    for pixels in args.inputs:
        for stage in args.stages:
            for dtype in dtypes:
                compare(args, pixels, stage, dtype, fused, bandwidth, rates[dtype])


def compare(
    args: argparse.Namespace, pixels: str, stage: int, dtype: str, backend: str, bandwidth: float, rate: float
) -> None:
    """The rows of one stage: forward, and forward + backward."""
    inputs = make_inputs(args, pixels, stage, dtype)
    functions = [
        partial(aggregated_attention, backend=backend),
        partial(unfused_attention, backend=backend),
        partial(aggregated_attention, backend='reference'),
    ]
    with torch.no_grad():
        output, *others = (function(*inputs) for function in functions)
    for other in others:
        torch.testing.assert_close(other, output, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    del others
    tensors = [tensor for tensor in inputs if tensor.is_floating_point()]
    input_bytes = sum(tensor.nbytes for tensor in inputs)
    attended = WINDOW_SIZE**2 + inputs.pooled_key.shape[1:3].numel()
    forward_operations = 4 * output.numel() * attended

    def forward(function: Callable[..., Tensor]) -> None:
        with torch.no_grad():
            function(*inputs)

    def training(function: Callable[..., Tensor]) -> None:
        torch.autograd.grad(function(*inputs), tensors, output)

    passes = [('forward', forward, input_bytes + output.nbytes, forward_operations)]
    if not args.no_training:
        # The backward pass reads the inputs and the output's gradient, writes the inputs' gradients, and has four
        # matrix products for the two of the forward pass.
        passes.append(('forward + backward', training, 3 * input_bytes + 2 * output.nbytes, 3 * forward_operations))
    for name, run, moved, operations in passes:
        for tensor in tensors:
            tensor.requires_grad_(run is training)
        floor = max(moved / bandwidth, operations / rate)
        fused, unfused, reference = (timed(args, partial(run, function)) for function in functions)
        ratios = (fused.seconds / floor, unfused.seconds / fused.seconds, reference.seconds / fused.seconds)
        memory = f'{unfused.mebibytes / fused.mebibytes:.1f}x' if fused.mebibytes else ''
        cells = (time_text(floor), fused, unfused, reference, *(f'{ratio:.1f}x' for ratio in ratios), memory)
        others = (baseline(args, name, run, inputs, fused) for name in args.baselines)
        print_row(pixels, stage, dtype, name, *cells, *others)


def baseline(
    args: argparse.Namespace, name: str, run: Callable, inputs: AggregatedAttentionInputs, fused: Measurement
) -> str:
    """The cell of a baseline: its time, its memory and how many times longer than `fused` it takes."""
    try:
        other = timed(args, partial(run, BASELINES[name](*inputs)))
    except Exception as error:  # an error of any kind: the others are measured
        reason = (str(error).strip().splitlines() or [''])[0].replace('|', '/')
        return f'{type(error).__name__}: {reason.split(". ")[0][:80]}'
    return f'{other}, {other.seconds / fused.seconds:.1f}x'


def make_inputs(args: argparse.Namespace, pixels: str, stage: int, dtype: str) -> AggregatedAttentionInputs:
    """Random tensors of the sizes that a stage has for an image."""
    token_stride, heads, pooled_stride = STAGES[stage]
    grid = tuple(ceil(side / token_stride) for side in sides_of(pixels))
    pooled_grid = tuple(side // pooled_stride for side in grid)
    sizes = dict(batch=args.batch, grid=grid, pooled_grid=pooled_grid, heads=heads, channels=CHANNELS)
    tensors = OPERATORS['aggregated_attention'].inputs(sizes, args.device, getattr(torch, dtype))
    inputs = AggregatedAttentionInputs(*tensors)
    # A pooled token is as many rows further as the stride says.
    rows = torch.arange(grid[0])[:, None] + pooled_stride * torch.arange(pooled_grid[0])
    bias = torch.randn(heads, int(rows.max()) + 1, grid[1], pooled_grid[1]).to(inputs.pooled_bias)
    return inputs._replace(pooled_bias=bias, pooled_bias_rows=rows.to(args.device))


def timed(args: argparse.Namespace, function: Callable[[], object]) -> Measurement:
    """Time of a call in a row of many, and peak memory of one."""
    function()  # warm-up
    memory = measure(function, args.device, 1)
    calls = max(1, round(SECONDS_PER_RUN / measure(function, args.device, 2, clock_of(args)).seconds))

    def many() -> None:
        for _ in range(calls):
            function()

    return Measurement(measure_with(args, many).seconds / calls, memory.mebibytes)


def copy_bandwidth(args: argparse.Namespace) -> float:
    """Bytes a second, read and written, of a copy that is larger than any cache."""
    source = torch.zeros(2**28, dtype=torch.uint8, device=args.device)
    target = torch.zeros_like(source)
    return 2 * source.nbytes / timed(args, lambda: target.copy_(source)).seconds


def matmul_rate(args: argparse.Namespace, dtype: str) -> float:
    """Floating-point operations a second of the product of two large matrices."""
    size = 8192 if args.device == 'cuda' else 2048
    matrix = torch.randn(size, size, device=args.device).to(getattr(torch, dtype))
    return 2 * size**3 / timed(args, lambda: matrix @ matrix).seconds


if __name__ == '__main__':
    main()
