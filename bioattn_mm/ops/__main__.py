"""What was compiled, and the backends of each device; with --check, whether the operators compute what they should.

--check runs every operator on this machine, in every dtype and many sizes, forward and backward, against its formula
in float64, and twice: results must repeat to the last bit, except for gradients of deformable_attention on a GPU. It
prints a report to paste into an issue, and takes less than a minute. The exit code is 1 if anything is different, and
2 if the device has no compiled operators.
"""

import argparse
import platform
import sys
from collections.abc import Sequence

import torch

from ..version import __version__
from .backends import (
    CUDA_ARCHITECTURES,
    HOW_TO_BUILD,
    LIBRARY,
    WHY_NOT_LOADED,
    WHY_NOT_ON_CUDA,
    available_backends,
    why_not_compiled,
)
from .check import check
from .samples import OPERATORS


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog='python -m bioattn_mm.ops', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--check', action='store_true', help='check the operators')
    parser.add_argument(
        '--device',
        choices=['cpu', 'cuda'],
        default='cuda' if torch.cuda.is_available() else 'cpu',
        help='where to check (default: the GPU if there is one, else the CPU)',
    )
    parser.add_argument(
        '--operators',
        nargs='+',
        choices=list(OPERATORS),
        default=list(OPERATORS),
        metavar='NAME',
        help=f'of {", ".join(OPERATORS)} (default: all)',
    )
    args = parser.parse_args(arguments)
    if args.check:
        if args.device == 'cuda' and not torch.cuda.is_available():
            parser.error('nothing to check on cuda: PyTorch finds no GPU')
        why_not = why_not_compiled(torch.device(args.device))
        if why_not:
            parser.error(f'nothing to check on {args.device}: {why_not}; {HOW_TO_BUILD}')
        print(f'bioattn_mm {__version__}, Python {platform.python_version()}, {platform.platform()}')
    print_what_was_built()
    if args.check:
        if args.device == 'cuda':
            gpu = torch.cuda.get_device_properties('cuda')
            capability, memory = f'{gpu.major}.{gpu.minor}', f'{gpu.total_memory / 2**30:.0f} GiB'
            print(f'{gpu.name}, compute capability {capability}, {memory}, CUDA {torch.version.cuda}')
        print()
        sys.exit(0 if check(args.device, args.operators) else 1)


def print_what_was_built() -> None:
    print(f'compiled operators: {f"none: {WHY_NOT_LOADED}; {HOW_TO_BUILD}" if WHY_NOT_LOADED else LIBRARY.name}')
    if not WHY_NOT_LOADED:
        of_processor = ', '.join(torch.ops.bioattn_mm.cpu_capabilities())
        in_use = torch.ops.bioattn_mm.cpu_capability()
        print(f'instruction set of the CPU operators: {in_use}, of {of_processor} (ATEN_CPU_CAPABILITY lowers it)')
    print(f'compiled for CUDA: {CUDA_ARCHITECTURES or f"no: {WHY_NOT_ON_CUDA}; {HOW_TO_BUILD}"}')
    print(f'torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}')
    for device in ('cpu', 'cuda'):
        backends = ', '.join(available_backends(torch.device(device)))
        absent = '; this machine has none' if device == 'cuda' and not torch.cuda.is_available() else ''
        print(f'{device}: {backends} (the first that supports the arguments){absent}')


if __name__ == '__main__':
    main()
