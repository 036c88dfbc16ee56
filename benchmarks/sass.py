#!/usr/bin/env python
"""Count the instructions of the CUDA kernels, without a GPU.

The kernels are compiled by nvcc and disassembled by cuobjdump. For a stage of TransNeXt-Tiny, the table has of each
kernel: registers of a thread, spills (instructions that move registers to memory and back), shared memory of a block,
instructions in the main loop (the one with the matrix products) and how many of them are matrix products, the
instructions that all warps of a launch execute, and two times that no GPU can be faster than: the issue floor, in
which the schedulers issue these instructions, one each in a cycle, and the bandwidth floor, in which each tensor is
read or written once.

These are counts, not times. All instructions up to the end of a kernel count, also those in branches that few warps
take; what the compiler puts behind the end is rare, and does not. Small loops besides the main one count as one
round. PyTorch's own kernels, which pad and add up partial sums, are not counted, nor the small one that finds the
pairs of rows that share a bias.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from measure import print_header, print_row

CSRC = Path(__file__).parents[1] / 'bioattn_mm' / 'ops' / 'csrc'
SOURCES = ('aggregated_attention_forward', 'aggregated_attention_backward', 'sliding_window_cuda', 'log_cpb_cuda')
FLAGS = ('-DUSE_CUDA', '-std=c++17', '-O3', '--expt-relaxed-constexpr', '--expt-extended-lambda')
# (stride of the tokens, heads, stride of the pooled grid in tokens); the fourth stage has no window.
STAGES = {1: (4, 3, 8), 2: (8, 6, 4), 3: (16, 12, 2)}
CHANNELS, WINDOW_SIZE = 24, 3
BYTES = dict(float32=4, float16=2, bfloat16=2)
# As the names of kernels have them.
DTYPES = {'f': 'float32', 'd': 'float64', 'N3c104HalfE': 'float16', 'N3c108BFloat16E': 'bfloat16'}
WARPS_OF_BLOCK, SCHEDULERS = 4, 4


@dataclass
class Gpu:
    """A GPU by its published figures."""

    capability: int
    multiprocessors: int
    gigahertz: float
    gigabytes_a_second: float


GPUS = {
    'T4': Gpu(75, 40, 1.59, 320),  # NVIDIA Turing GPU Architecture, appendix on the Tesla T4
    'A100': Gpu(80, 108, 1.41, 1555),  # NVIDIA A100 Tensor Core GPU Architecture, table 4 (SXM, 40 GB)
    'RTX4090': Gpu(89, 128, 2.52, 1008),  # NVIDIA Ada GPU Architecture, appendix A
    'H100': Gpu(90, 132, 1.83, 3350),  # NVIDIA H100 Tensor Core GPU Architecture, table 3 (SXM5)
}


@dataclass
class Instruction:
    """A line of SASS: '@!P0 BRA 0x1b0' at its address."""

    address: int
    predicate: str
    opcode: str
    operands: str

    @property
    def target(self) -> int | None:
        """Where a branch goes."""
        match = re.search(r'0x([0-9a-f]+)', self.operands) if self.opcode.startswith('BRA') else None
        return int(match[1], 16) if match else None


@dataclass
class Kernel:
    """A compiled kernel: `function` is its mangled name."""

    function: str
    registers: int = 0
    instructions: list[Instruction] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Such as 'forward_kernel<3, 3, float16>'."""
        arguments = r'I((?:Li\d+E)*)(f|d|N3c104HalfE|N3c108BFloat16E)'
        match = re.search(rf'\d+([a-z_]+_kernel)(?:{arguments}|E)', self.function)
        if not match or not match[3]:
            return match[1] if match else self.function
        sizes = re.findall(r'\d+', match[2])
        return f'{match[1]}<{", ".join([*sizes, DTYPES[match[3]]])}>'

    @property
    def spills(self) -> int:
        return sum(instruction.opcode.startswith(('LDL', 'STL')) for instruction in self.instructions)

    @property
    def body(self) -> list[Instruction]:
        """The instructions up to the end, where every thread exits; what is rare lies behind it."""
        for i, instruction in enumerate(self.instructions):
            if instruction.opcode == 'EXIT' and not instruction.predicate:
                return self.instructions[: i + 1]
        return self.instructions

    @property
    def main_loops(self) -> list[list[Instruction]]:
        """The loops around the matrix products or else around sums over lanes, from the outer to the inner."""
        ends: dict[int, int] = {}  # of a loop, by its beginning
        for instruction in self.body:
            if instruction.target is not None and instruction.target < instruction.address:
                ends[instruction.target] = instruction.address
        loops = [[i for i in self.body if begin <= i.address <= end] for begin, end in ends.items()]
        main = [loop for loop in loops if products(loop)] or [loop for loop in loops if has_shuffle(loop)]
        return sorted(main, key=len, reverse=True)

    def executed(self, rounds: tuple[float, ...]) -> float:
        """Instructions that a warp executes, where the main loops have so many rounds, the outer first."""
        loops = self.main_loops
        if len(loops) != len(rounds):
            raise ValueError(f'{self.name} should have {len(rounds)} main loops, has {len(loops)}')
        count, inner = 0.0, 0
        for loop, times in zip(reversed(loops), reversed(rounds)):
            count, inner = times * (len(loop) - inner + count), len(loop)
        return len(self.body) - inner + count


def has_shuffle(instructions: list[Instruction]) -> bool:
    return any(instruction.opcode.startswith('SHFL') for instruction in instructions)


def products(instructions: list[Instruction]) -> int:
    return sum(instruction.opcode.startswith('HMMA') for instruction in instructions)


def parse(dump: str) -> Iterator[Kernel]:
    """The kernels in what `cuobjdump -res-usage -sass` prints."""
    registers = dict(re.findall(r'Function (\S+):\s+REG:(\d+)', dump))
    kernel = None
    for line in dump.splitlines():
        if match := re.match(r'\s*Function : (\S+)', line):
            if kernel:
                yield kernel
            kernel = Kernel(match[1], int(registers.get(match[1], 0)))
        elif kernel and (match := re.match(r'\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?);', line)):
            kernel.instructions.append(Instruction(int(match[1], 16), (match[2] or '').strip(), match[3], match[4]))
    if kernel:
        yield kernel


@dataclass
class Launch:
    """How a kernel runs: blocks of four warps, rounds of its main loops, shared memory, and bytes to move."""

    blocks: int
    rounds: tuple[float, ...]
    shared_bytes: int
    moved_bytes: int


def launches(height: int, width: int, stage: int, batch: int, dtype: str) -> dict[str, Launch]:
    """The launches of a forward and a backward pass for an image of so many pixels, by the names of the kernels."""
    token_stride, heads, pooled_stride = STAGES[stage]
    height, width = ceil(height / token_stride), ceil(width / token_stride)
    pooled_height, pooled_width = height // pooled_stride, width // pooled_stride
    bias_rows = height + pooled_stride * (pooled_height - 1)
    size, window = BYTES[dtype], WINDOW_SIZE**2
    runs_at_once = 16 // size
    runs, pooled_runs = height * ceil(width / 8), pooled_height * ceil(pooled_width / 8)

    # As in csrc/cuda: tiles of 2 x 8 queries in each warp, and two tensors twice in shared memory.
    over_image = ceil(width / 8) * ceil(height / (2 * WARPS_OF_BLOCK)) * heads * batch
    staged = 4 * 8 * runs_at_once * (CHANNELS + (4 if size == 4 else 0)) * size
    of_window = WARPS_OF_BLOCK * 16 * window * 4
    pooled_rounds, rounds = ceil(pooled_runs / runs_at_once), ceil(runs / runs_at_once)
    key_blocks = ceil(pooled_runs / (2 * WARPS_OF_BLOCK)) * heads * batch
    in_split = ceil(rounds / min(max(512 // key_blocks, 1), rounds))
    splits = ceil(rounds / in_split)
    bias_blocks = bias_rows * ceil(width / (16 * WARPS_OF_BLOCK)) * ceil(pooled_width / 16) * heads

    queries = batch * height * width * heads
    tokens, weights, statistics = queries * CHANNELS * size, queries * window * size, queries * 8
    pooled = batch * pooled_height * pooled_width * heads * CHANNELS * size
    bias = heads * bias_rows * width * pooled_width * size
    forward = 4 * tokens + 2 * pooled + bias + weights + queries * 4
    query = (7 if size == 2 else 6) * tokens + 2 * pooled + bias + 2 * weights + statistics + queries * 4
    partial_sums = 2 * splits * pooled // size * 4
    return {
        f'forward_kernel<3, 3, {dtype}>': Launch(over_image, (pooled_rounds,), max(staged, of_window), forward),
        f'query_kernel<3, 3, {dtype}>': Launch(over_image, (pooled_rounds,), max(staged, 2 * of_window), query),
        f'window_kernel<3, 3, {dtype}>': Launch(over_image, (WINDOW_SIZE + 1,), 0, 6 * tokens + weights + statistics),
        f'pooled_kernel<3, {dtype}>': Launch(
            key_blocks * splits, (in_split,), staged, 2 * tokens + 2 * pooled + bias + statistics + partial_sums
        ),
        f'pooled_bias_kernel<3, {dtype}>': Launch(
            bias_blocks,
            (height * pooled_height / bias_rows, batch),
            0,
            2 * tokens + 2 * pooled + 2 * bias + statistics,
        ),
    }


def find_tool(name: str) -> str:
    """Path of a program of the CUDA toolkit: on PATH, in CUDA_HOME, or as Triton brings it.

    Raises:
        FileNotFoundError: It is nowhere.
    """
    folders = [Path(os.environ.get('CUDA_HOME', '/usr/local/cuda')) / 'bin']
    folders += [Path(folder) / 'triton' / 'backends' / 'nvidia' / 'bin' for folder in sys.path]
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, folders)))
    if not path:
        raise FileNotFoundError(f'there is no {name} on PATH, in CUDA_HOME or in Triton; install the CUDA toolkit')
    return path


def compiled(source: str, capability: int) -> list[Kernel]:
    """The kernels of a file of csrc/cuda, compiled for a compute capability."""
    from torch.utils.cpp_extension import include_paths  # takes seconds

    nvcc, cuobjdump = find_tool('nvcc'), find_tool('cuobjdump')
    includes = [f'-I{CSRC}', *(f'-I{path}' for path in include_paths())]
    with tempfile.TemporaryDirectory() as folder:
        cubin = f'{folder}/{source}.cubin'
        output = ['-cubin', f'-arch=sm_{capability}', '-o', cubin, str(CSRC / 'cuda' / f'{source}.cu')]
        subprocess.run([nvcc, *FLAGS, *includes, *output], check=True)
        dump = subprocess.run(
            [cuobjdump, '-res-usage', '-sass', cubin], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    return list(parse(dump.stdout.decode()))


def microseconds(seconds: float) -> str:
    return f'{1e6 * seconds:.1f} us'


def print_launches(args: argparse.Namespace, name: str, kernels: dict[str, Kernel]) -> None:
    """The table of a GPU."""
    gpu = GPUS[name]
    sides = [int(side) for side in args.input.split('x')]
    shape = (sides[0], sides[-1], args.stage, args.batch, args.dtype)
    print(f'\n{name}: compute capability {gpu.capability / 10}, {gpu.multiprocessors} multiprocessors, ', end='')
    print(f'{gpu.gigahertz} GHz, {gpu.gigabytes_a_second} GB/s\n')
    print_header(
        *('kernel', 'registers', 'spills', 'shared memory', 'main loop', 'matrix products'),
        *('warps', 'warp instructions', 'issue floor', 'bandwidth floor'),
    )
    passes = dict(forward=(0.0, 0), backward=(0.0, 0))
    for kernel_name, launch in launches(*shape).items():
        kernel = kernels[kernel_name]
        loops, warps = kernel.main_loops, launch.blocks * WARPS_OF_BLOCK
        executed = warps * kernel.executed(launch.rounds)
        name_of_pass = 'forward' if kernel_name.startswith('forward') else 'backward'
        instructions, moved = passes[name_of_pass]
        passes[name_of_pass] = instructions + executed, moved + launch.moved_bytes
        main = loops[0] if loops else []
        cells = (len(main) or '', products(main) or '', warps, *floors(gpu, executed, launch.moved_bytes))
        print_row(kernel_name, kernel.registers, kernel.spills, f'{launch.shared_bytes} B', *cells)
    for name_of_pass, (instructions, moved) in passes.items():
        print_row(f'**{name_of_pass}**', '', '', '', '', '', '', *floors(gpu, instructions, moved))


def floors(gpu: Gpu, instructions: float, moved_bytes: int) -> tuple[str, str, str]:
    """Cells: instructions, and the times that they and the bytes take at least."""
    issue = instructions / (SCHEDULERS * gpu.multiprocessors * gpu.gigahertz * 1e9)
    bandwidth = moved_bytes / (gpu.gigabytes_a_second * 1e9)
    return f'{instructions / 1e6:.2f} M', microseconds(issue), microseconds(bandwidth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--gpus', nargs='+', choices=list(GPUS), default=['H100'], help='default: %(default)s')
    parser.add_argument('--input', default='512', help='pixels: N or HEIGHTxWIDTH (default: %(default)s)')
    parser.add_argument('--stage', type=int, choices=list(STAGES), default=1, help='default: %(default)s')
    parser.add_argument('--batch', type=int, default=1, help='images (default: %(default)s)')
    parser.add_argument('--dtype', choices=list(BYTES), default='float16', help='default: %(default)s')
    parser.add_argument(
        '--every-kernel', action='store_true', help='list registers, spills and main loops of every compiled kernel'
    )
    args = parser.parse_args()
    if not re.fullmatch(r'[1-9]\d*(x[1-9]\d*)?', args.input):
        parser.error(f'--input takes N or HEIGHTxWIDTH, got {args.input}')
    for name in args.gpus:
        if GPUS[name].capability < 80 and args.dtype != 'float16' and not args.every_kernel:
            parser.error(
                f'the tensor cores of {name} multiply float16 alone: --dtype {args.dtype} has no matrix products'
            )
    try:
        for capability in sorted({GPUS[name].capability for name in args.gpus}):
            sources = SOURCES if args.every_kernel else SOURCES[:2]
            kernels = {kernel.name: kernel for source in sources for kernel in compiled(source, capability)}
            if args.every_kernel:
                print(f'\ncompute capability {capability / 10}\n')
                print_header('kernel', 'registers', 'spills', 'instructions', 'main loop', 'matrix products')
                for kernel in sorted(kernels.values(), key=lambda kernel: kernel.name):
                    loop = (kernel.main_loops or [[]])[0]
                    print_row(
                        kernel.name, kernel.registers, kernel.spills, len(kernel.body), len(loop), products(loop)
                    )
                continue
            for name in args.gpus:
                if GPUS[name].capability == capability:
                    print_launches(args, name, kernels)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
