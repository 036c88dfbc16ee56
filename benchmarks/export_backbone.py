#!/usr/bin/env python
"""A backbone alone, exported for one size by torch.export: onnxruntime and OpenVINO against PyTorch, in one process.

The same ONNX file runs in both. Weights are random, seconds are those of the processor, one thread. `products` is the
share of the time in onnxruntime that its profile gives to products of matrices and convolutions, the floor.
"""

import argparse
import collections
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import openvino
import torch
from measure import print_header, print_row
from onnxruntime import InferenceSession, SessionOptions

from bioattn_mm import TransNeXt
from bioattn_mm.export.networks import Features
from bioattn_mm.export.onnx_file import write_onnx
from bioattn_mm.export.program import trace_portable

PRODUCTS = ('Gemm', 'MatMul', 'FusedMatMul', 'Conv', 'Einsum')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arch', default='tiny', help='of TransNeXt (default: %(default)s)')
    parser.add_argument(
        '--depths',
        type=int,
        nargs=4,
        metavar='N',
        help='blocks of each stage, to measure fewer: exporting takes minutes (default: all)',
    )
    parser.add_argument('--sizes', nargs='+', default=['512x512'], metavar='HxW', help='pixels (default: 512x512)')
    parser.add_argument('--repeats', type=int, default=5, help='runs of each; the fastest counts (default: 5)')
    args = parser.parse_args()

    torch.set_num_threads(1)
    arch = dict(TransNeXt.parse_arch(args.arch))
    arch['depths'] = tuple(args.depths or arch['depths'])
    network = Features(TransNeXt(arch=arch)).eval().requires_grad_(False)
    print(f'TransNeXt-{args.arch}, blocks {arch["depths"]}, batch 1, float32, 1 thread\n')
    print_header('size', 'PyTorch', 'onnxruntime', 'OpenVINO', 'faster', 'products', 'difference', 'file')
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            row(network, tuple(int(side) for side in size.split('x')), Path(folder), args.repeats)


@torch.no_grad()
def row(network: torch.nn.Module, size: tuple[int, int], folder: Path, repeats: int) -> None:
    file = folder / 'backbone.onnx'
    write_onnx(trace_portable(network, size), network.names, file, any_size=False)
    session, profiled = make_session(file), make_session(file, str(folder / 'profile'))
    hints = dict(INFERENCE_NUM_THREADS=1, NUM_STREAMS=1, INFERENCE_PRECISION_HINT='f32')
    compiled = openvino.Core().compile_model(file, 'CPU', hints)
    image = torch.randn(1, 3, *size)
    array = image.numpy()

    pairs = zip(network(image), session.run(None, {'input': array}))
    difference = max(float((expected - torch.from_numpy(output)).abs().max()) for expected, output in pairs)
    functions = (lambda: network(image), lambda: session.run(None, {'input': array}), lambda: compiled(array))
    seconds = [fastest(function, repeats) for function in functions]
    for _ in range(repeats):
        profiled.run(None, {'input': array})
    times = (f'{1000 * second:.0f} ms' for second in seconds)
    share = share_of_products(json.loads(Path(profiled.end_profiling()).read_text()))
    megabytes = file.stat().st_size / 2**20
    faster = f'{seconds[0] / seconds[1]:.2f}x'
    print_row('{} x {}'.format(*size), *times, faster, f'{share:.0%}', f'{difference:.1e}', f'{megabytes:.0f} MiB')


def make_session(file: Path, profile: str | None = None) -> InferenceSession:
    options = SessionOptions()
    options.intra_op_num_threads = 1
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return InferenceSession(file, options, providers=['CPUExecutionProvider'])


def fastest(function: Callable[[], object], repeats: int) -> float:
    """Seconds of the processor of the fastest run, after one to warm up."""
    function()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return min(seconds)


def share_of_products(events: list[dict]) -> float:
    """The share of the time in a profile of onnxruntime that goes into products."""
    times = collections.Counter()
    for event in events:
        if event.get('cat') == 'Node' and event['name'].endswith('kernel_time'):
            times[event['args']['op_name']] += event['dur']
    return sum(times[name] for name in PRODUCTS) / sum(times.values())


if __name__ == '__main__':
    main()
