#!/usr/bin/env python
"""Aggregated attention at TransNeXt-Tiny's stages: fused, in separate operators, and in PyTorch, in one process.

`fused` is `bioattn_mm.ops.aggregated_attention` compiled for the device, `reference` the same in PyTorch. `unfused`
runs one operator for each step: logits of the window, logits of the pooled grid, softmax over both, and two weighted
sums; on a GPU those of the window have one thread for each element. The floor is the time that the device takes to
move the inputs and outputs once or to do the multiplications, whichever is longer, at rates that are measured first.

--cpu-time counts the seconds of the processor, of all threads, for a machine that does other things, too.
--baselines adds FlexAttention, with the same result, compiled and eager, where all weights exist at once; PyTorch's
formulas through torch.compile; and NATTEN, where it is installed (pip install natten), by itself and through
torch.compile. NATTEN has no position bias, and on a CPU no kernel of its own. A baseline that does not run says why.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from math import ceil

import torch
from baselines import compiled_formulas, flex_aggregated_attention, natten_attention, unfused_attention
from measure import Measurement, make_parser, measure, print_header, print_row, time_text
from torch import Tensor

from bioattn_mm.ops import AggregatedAttentionInputs, aggregated_attention
from bioattn_mm.ops.backends import HOW_TO_BUILD, available_backends

# (stride of the tokens, heads, stride of the pooled grid in tokens); the fourth stage has no window.
STAGES = {1: (4, 3, 8), 2: (8, 6, 4), 3: (16, 12, 2)}
CHANNELS = 24  # of a head
WINDOW_SIZE = 3
BASELINES = {
    'FlexAttention': flex_aggregated_attention,
    'FlexAttention-eager': partial(flex_aggregated_attention, compiled=False),
    'formulas-compiled': compiled_formulas,
    'NATTEN': natten_attention,
    'NATTEN-compiled': lambda *inputs: torch.compile(natten_attention(*inputs)),
}
DTYPES = dict(cpu=['float32'], cuda=['float32', 'float16', 'bfloat16'])
TOLERANCE = dict(float32=1e-4, float16=2e-2, bfloat16=1e-1)
SECONDS_PER_RUN = 0.05  # a run repeats short calls for so long


def main() -> None:
    parser = make_parser(__doc__, repeats=5)
    parser.set_defaults(device='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument(
        '--dtypes', nargs='+', choices=list(TOLERANCE), help='default: float32, on a GPU float16 and bfloat16, too'
    )
    parser.add_argument('--inputs', nargs='+', default=['224', '512', '800x1333'], help='pixels: N or HEIGHTxWIDTH')
    parser.add_argument('--stages', type=int, nargs='+', default=list(STAGES), choices=list(STAGES))
    parser.add_argument('--batch', type=int, default=1, help='images (default: 1)')
    parser.add_argument('--no-training', action='store_true', help='measure the forward pass only')
    parser.add_argument('--graphs', action='store_true', help='replay CUDA graphs, without the cost of launches')
    parser.add_argument('--cpu-time', action='store_true', help='seconds of the processor, of all threads')
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
    if args.graphs and args.device == 'cpu':
        parser.error('--graphs needs --device cuda')
    if args.cpu_time and args.device == 'cuda':
        parser.error('--cpu-time needs --device cpu')

    dtypes = args.dtypes or DTYPES[args.device]
    clock = 'processor' if args.cpu_time else 'clock'
    name = torch.cuda.get_device_name() if args.device == 'cuda' else f'{torch.get_num_threads()} threads'
    print(f'TransNeXt-Tiny, batch {args.batch}, {args.device} ({name}), torch {torch.__version__}, ', end='')
    print(f'seconds of the {clock}, fastest of {args.repeats}{", CUDA graphs" if args.graphs else ""}\n')
    bandwidth = copy_bandwidth(args)
    rates = {dtype: matmul_rate(args, dtype) for dtype in dtypes}
    print(f'- copies: {bandwidth / 1e9:.3g} GB/s, read and written')
    print(''.join(f'- products of {dtype} matrices: {rate / 1e12:.3g} TFLOP/s\n' for dtype, rate in rates.items()))
    if not find_spec('natten') and any('NATTEN' in name for name in args.baselines):
        print('NATTEN is not installed (pip install natten): skipped\n')
        args.baselines = [name for name in args.baselines if 'NATTEN' not in name]
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
    except Exception as error:  # of any kind: the others are measured
        reason = (str(error).strip().splitlines() or [''])[0].replace('|', '/')
        return f'{type(error).__name__}: {reason.split(". ")[0][:80]}'
    return f'{other}, {other.seconds / fused.seconds:.1f}x'


def make_inputs(args: argparse.Namespace, pixels: str, stage: int, dtype: str) -> AggregatedAttentionInputs:
    """Random tensors of the sizes that a stage has for an image."""
    token_stride, heads, pooled_stride = STAGES[stage]
    sides = [int(side) for side in pixels.split('x')]
    height, width = (ceil(side / token_stride) for side in (sides[0], sides[-1]))
    pooled_height, pooled_width = height // pooled_stride, width // pooled_stride
    # Vertical offsets between query rows and pooled rows, from 0.
    offsets = torch.arange(height)[:, None] + pooled_stride * torch.arange(pooled_height).flip(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=args.device).to(getattr(torch, dtype))

    tokens, pooled = (args.batch, height, width, heads), (args.batch, pooled_height, pooled_width, heads)
    return AggregatedAttentionInputs(
        query=random(*tokens, CHANNELS),
        key=random(*tokens, CHANNELS),
        value=random(*tokens, CHANNELS),
        pooled_key=random(*pooled, CHANNELS),
        pooled_value=random(*pooled, CHANNELS),
        window_bias=random(heads, WINDOW_SIZE**2),
        pooled_bias=random(heads, int(offsets.max()) + 1, width, pooled_width),
        pooled_bias_rows=offsets.to(args.device),
        token_weights=random(*tokens, WINDOW_SIZE**2),
    )


def timed(args: argparse.Namespace, function: Callable[[], object]) -> Measurement:
    """Time of a call in a row of many, and peak memory of one."""
    function()  # warm-up
    memory = measure(function, args.device, 1)
    run = captured(function) if args.graphs else function
    clock = time.process_time if args.cpu_time else time.perf_counter
    calls = max(1, round(SECONDS_PER_RUN / measure(run, args.device, 2, clock).seconds))

    def many() -> None:
        for _ in range(calls):
            run()

    return Measurement(measure(many, args.device, args.repeats, clock).seconds / calls, memory.mebibytes)


def captured(function: Callable[[], object]) -> Callable[[], None]:
    """A function that launches the kernels of a call as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


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
