#!/usr/bin/env python
"""A network exported by torch.export for one size: every target against eager PyTorch, in one process.

The network is a backbone alone, or a whole segmentor without resizing its scores (--segmentor). The same ONNX file
runs in onnxruntime and OpenVINO. Weights and images are random, also those of the calibration: the times are meant,
not the predictions. Seconds are those of the processor, one thread. `products` is the share of onnxruntime's time in
float32 that its profile gives to products of matrices and convolutions: its inverse is what a file could be faster at
most.
"""

import argparse
import collections
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from measure import print_header, print_row, sides_of, take_turns
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from onnxruntime import InferenceSession, SessionOptions
from torch import nn

from bioattn_mm import TransNeXt
from bioattn_mm.export.networks import Features, network_of
from bioattn_mm.export.onnx_file import INPUT, write_onnx
from bioattn_mm.export.program import trace, trace_portable
from bioattn_mm.export.quantization import quantize
from bioattn_mm.runtime.backends import open_backend

PRODUCTS = ('Gemm', 'MatMul', 'FusedMatMul', 'Conv', 'Einsum')
ON_FILES = ('onnxruntime', 'onnxruntime int8', 'OpenVINO', 'OpenVINO bfloat16', 'OpenVINO int8')
TARGETS = ('PyTorch bfloat16', *ON_FILES, 'AOTInductor')
MAIN = 'onnxruntime'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arch', default='tiny', help='of TransNeXt (default: %(default)s)')
    segmentor_help = 'measure the segmentor of a config, such as transnext/upernet_tiny_ade20k'
    parser.add_argument('--segmentor', metavar='CONFIG', help=segmentor_help)
    parser.add_argument('--size', default='512x512', metavar='HxW', help='pixels (default: %(default)s)')
    parser.add_argument('--targets', nargs='+', choices=TARGETS, default=TARGETS, help='what runs (default: all)')
    parser.add_argument('--repeats', type=int, default=5, help='runs of each; the fastest counts (default: 5)')
    args = parser.parse_args()

    torch.set_num_threads(1)
    size = sides_of(args.size)
    if args.segmentor:
        config = Config.fromfile(Path(__file__).parents[1] / f'configs/{args.segmentor}.py')
        init_default_scope(config.default_scope)
        name, network = args.segmentor, network_of(MODELS.build(config.model), config)
    else:
        name, network = f'TransNeXt-{args.arch}', Features(TransNeXt(args.arch), torch.zeros(1, 3, *size))
    network = network.eval().requires_grad_(False)
    print(f'{name}, 1 x 3 x {size[0]} x {size[1]}, 1 thread\n')
    with tempfile.TemporaryDirectory() as folder:
        table(network, torch.randn(1, 3, *size), Path(folder), args.targets, args.repeats)


@torch.no_grad()
def table(network: nn.Module, image: torch.Tensor, folder: Path, targets: tuple[str, ...], repeats: int) -> None:
    """Print a row for each target as soon as it is measured."""
    print_header('target', 'an image', 'faster', 'difference', 'file')
    files = Files(network, image, folder)
    expected = network(image)

    def difference_of(outputs: Sequence) -> float:
        pairs = zip(expected, outputs, strict=True)
        return max(float((own - torch.as_tensor(output)).abs().max() / own.abs().max()) for own, output in pairs)

    eager = fastest(lambda: network(image), repeats)
    print_row('PyTorch', f'{1000 * eager:.0f} ms', '', '', '')
    for target in targets:
        run, file = files.open(target)
        difference = difference_of(run())
        seconds = fastest(run, repeats)
        size = f'{file.stat().st_size / 2**20:.0f} MiB' if file else ''
        print_row(target, f'{1000 * seconds:.0f} ms', f'{eager / seconds:.2f}x', f'{difference:.1e}', size)
    if MAIN in targets:
        print(f'\nproducts: {files.share_of_products(repeats):.0%} of {MAIN}')


class Files:
    """The exported files of a network in eval mode, each written when it is first needed, and run on an image."""

    def __init__(self, network: nn.Module, image: torch.Tensor, folder: Path) -> None:
        self._network, self._image, self._folder = network, image, folder
        self._array = image.numpy()

    def open(self, target: str) -> tuple[Callable[[], object], Path | None]:
        """A function that runs a target on the image, and its file."""
        image, array = self._image, self._array
        if target == 'PyTorch bfloat16':
            return self._in_bfloat16, None
        if target == 'AOTInductor':
            file = self._folder / 'model.aoti.pt2'
            program = trace(self._network, tuple(image.shape[2:]))
            torch._inductor.aoti_compile_and_package(program, package_path=str(file))
            run = torch._inductor.aoti_load_package(str(file))
            return lambda: run(image), file
        file = self._int8() if 'int8' in target else self._onnx()
        backend = open_backend(target.split()[0].lower(), file, 1, device='cpu', bfloat16='bfloat16' in target)
        return lambda: tuple(backend.run(array).values()), file

    def share_of_products(self, repeats: int) -> float:
        """The share of the time in onnxruntime that goes into products."""
        options = SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        options.enable_profiling, options.profile_file_prefix = True, str(self._folder / 'profile')
        session = InferenceSession(self._onnx(), options, providers=['CPUExecutionProvider'])
        for _ in range(repeats):
            session.run(None, {INPUT: self._array})
        return share_of_products(json.loads(Path(session.end_profiling()).read_text(encoding='utf-8')))

    @torch.no_grad()
    def _in_bfloat16(self) -> tuple[torch.Tensor, ...]:
        with torch.autocast('cpu', torch.bfloat16):
            return self._network(self._image)

    def _onnx(self) -> Path:
        file = self._folder / 'model.onnx'
        if not file.is_file():
            program = trace_portable(self._network, tuple(self._image.shape[2:]))
            write_onnx(program, self._network.names, file, any_size=False)
        return file

    def _int8(self) -> Path:
        file = self._folder / 'model_int8.onnx'
        if not file.is_file():
            inputs = iter([{INPUT: self._array}])  # to calibrate on
            quantize(self._onnx(), file, SimpleNamespace(get_next=lambda: next(inputs, None)))
        return file


def fastest(function: Callable[[], object], repeats: int) -> float:
    """Seconds of the processor of the fastest run, after one to warm up."""
    function()
    return take_turns({'': function}, 'cpu', repeats, time.process_time)['']


def share_of_products(events: list[dict]) -> float:
    """The share of the time in a profile of onnxruntime that goes into products."""
    times = collections.Counter()
    for event in events:
        if event.get('cat') == 'Node' and event['name'].endswith('kernel_time'):
            times[event['args']['op_name']] += event['dur']
    return sum(times[name] for name in PRODUCTS) / sum(times.values())


if __name__ == '__main__':
    main()
