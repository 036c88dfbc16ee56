"""The CUDA kernels' own source, compiled for the CPU, with a check of every step.

- Threads are fibers, which run in random order between barriers (fibers.h).
- Every access of shared memory is checked for races, for what nobody has written, for the end of the memory and for
  alignment; shared memory and new tensors begin as NaN, and tensors lie between pages that must not be touched
  (memory.h).
- The PTX instructions follow the PTX ISA (ptx.h): tensor cores round toward zero as the hardware does, approximations
  have the largest error that they may have, and asynchronous copies arrive when a thread waits for them, not before.

The first fault ends the kernel with a `RuntimeError` that names the line.
"""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from torch.autograd.function import FunctionCtx
from torch.utils.cpp_extension import include_paths

from bioattn_mm.ops.samples import OPERATORS
from tests.needs import reason_of_lack

HERE = Path(__file__).parent
CSRC = Path(__file__).parents[3] / 'bioattn_mm' / 'ops' / 'csrc'
# Those of the package whose operators run on CUDA.
MODULES = (
    'add_norm aggregated_attention cosine_attention deformable_attention gated_convolution gelu_pool log_cpb '
    'sliding_window sparse_codes'
)
TAKE_LISTS = ('aggregated_attention', 'cosine_attention')  # of their inputs
# Seed of the order of the threads in all tests; by default another one in each run.
SEED_VARIABLE = 'BIOATTN_MM_THREADS_SEED'


class CUDAOnCPU:
    """A library of kernels, loaded: `operators` has its operators.

    Args:
        name: Of the library and of its operators, `torch.ops.<name>`.
        folder: Where all libraries are compiled, by the first process of the tests that asks.
        sources: CUDA files, which are checked, and C++ files of operators; by default all kernels of the package.
        capability: Compute capability to compile for, times 100: 800 for 8.0 and later, 750, or 0 for earlier ones.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        sources: Sequence[Path] = (*sorted(CSRC.glob('cuda/*.cu')), HERE / 'operators.cpp'),
        capability: int = 800,
    ) -> None:
        if reason := reason_of_lack('compiler'):
            pytest.skip(reason)
        folder.mkdir(exist_ok=True)
        library = folder / f'{name}.so'
        with FileLock(f'{library}.lock'):
            if not library.exists():
                compile_library(library, sources, capability)
        torch.ops.load_library(library)
        self.operators = getattr(torch.ops, name)

    def function_of(self, name: str) -> type[torch.autograd.Function]:
        """An operator under autograd: what its backward pass takes and gives, the schemas of the package say."""
        compiled = [getattr(torch.ops.bioattn_mm, each).default._schema for each in (name, f'{name}_backward')]
        (names, taken), (results, gradients) = (
            [[each.name for each in getattr(schema, of)] for schema in compiled] for of in ('arguments', 'returns')
        )
        number, operators = sum(each.startswith('grad_') for each in taken), self.operators

        def forward(ctx: FunctionCtx, *inputs: object) -> torch.Tensor | tuple[torch.Tensor, ...]:
            if name in TAKE_LISTS:
                found = getattr(operators, f'{name}_forward')(inputs[:-1], inputs[-1])
            else:
                found = getattr(operators, name)(*inputs)
            found = (found,) if isinstance(found, torch.Tensor) else tuple(found)
            ctx.values = dict(zip(names + results, (*inputs, *(t.detach() for t in found)), strict=True))
            ctx.mark_non_differentiable(*found[number:])
            ctx.set_materialize_grads(False)
            return found if len(found) > 1 else found[0]

        def backward(ctx: FunctionCtx, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            values = [ctx.values[each] for each in taken[number:]]
            if name in TAKE_LISTS:
                values = [values[:-3], *values[-3:]]
            found = getattr(operators, f'{name}_backward')(*grads[:number], *values)
            found = dict(zip(gradients, (found,) if isinstance(found, torch.Tensor) else found, strict=True))
            return tuple(found.get(each) if needed else None for each, needed in zip(names, ctx.needs_input_grad))

        return type(
            name, (torch.autograd.Function,), dict(forward=staticmethod(forward), backward=staticmethod(backward))
        )

    def draw_order(self) -> None:
        """Draw the order of the threads, and at which end tensors meet a guard page; pytest shows the seed."""
        seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(2**31)))
        print(f'order of the threads: {SEED_VARIABLE}={seed}')
        self.operators.set_seed(seed)

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> 'CUDAOnCPU':
        """Until the end of a test, operators of the package with backend='cuda' run here, on tensors of the CPU."""
        self.draw_order()
        if reason := reason_of_lack('operators'):
            pytest.skip(reason)
        functions = {name: self.function_of(name) for name in OPERATORS if 'cuda' in OPERATORS[name].dtypes}

        def differentiable(name: str, *inputs: object) -> torch.Tensor | tuple[torch.Tensor, ...]:
            if name == 'add_norm':  # that of the CPU takes weight and bias in float32
                inputs = *inputs[:4], *(tensor.to(inputs[0].dtype) for tensor in inputs[4:6]), *inputs[6:]
            return functions[name].apply(*inputs)

        for name in MODULES.split():
            module = import_module(f'bioattn_mm.ops.{name}')
            monkeypatch.setattr(module, 'choose_backend', lambda device, backend, unsupported=None: backend)
            monkeypatch.setattr(module, 'differentiable', differentiable)
        return self

    @contextmanager
    def without_barrier(self, place: str) -> Iterator[None]:
        """Leave out the barrier at a place such as 'file.cu:12'."""
        self.operators.leave_out_barrier(place)
        yield
        self.operators.leave_out_barrier('')


def compile_library(library: Path, sources: Sequence[Path], capability: int) -> None:
    """Compile sources and the emulation itself into a library, whose operators have its name."""
    folder, name, compiler = library.parent, library.stem, os.environ.get('CXX', 'g++')
    translated = folder / 'csrc'
    # Headers of this folder take the place of CUDA's, and of those of `csrc` that have the same name.
    compile_one = [
        *(compiler, '-std=c++17', '-fPIC', '-fno-gnu-unique', f'-I{HERE}', f'-I{translated}'),
        *(f'-DNAMESPACE={name}', f'-DBIOATTN_CAPABILITY={capability}'),
        # Some distributions set it by default; then a jump to another thread's stack counts as an error.
        '-U_FORTIFY_SOURCE',
        f'-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}',
        *(f'-isystem{path}' for path in include_paths()),
    ]
    own = folder / name
    own.mkdir(exist_ok=True)
    objects = []
    with FileLock(f'{translated}.lock'):
        if not translated.exists():
            shutil.copytree(CSRC, translated)
            for header in translated.rglob('*.cuh'):
                header.write_text(with_calls_for_ptx(header.read_text()))
        for part in ('fibers', 'memory', 'ptx'):
            objects.append(str(folder / f'{part}.o'))
            if not Path(objects[-1]).exists():
                run([*compile_one, '-O2', '-c', str(HERE / f'{part}.cpp'), '-o', objects[-1]])
    for source in sources:
        flags = ['-O0']
        if source.suffix == '.cu':
            kernels, source = source.read_text(), own / source.name
            source.write_text(with_calls_for_ptx(kernels))
            # All that kernels do with memory is checked. Lines are named in faults.
            flags = ['-fsanitize=thread,alignment', '-fno-builtin-memcpy', '-O1', '-g1', '-x', 'c++']
            flags.append('-DBIOATTN_SUM_BLOCKS=2')
        objects.append(str(own / f'{source.stem}.o'))
        run([*compile_one, *flags, '-c', str(source), '-o', objects[-1]])
    libraries, linked = Path(torch.__file__).parent / 'lib', str(own / 'linked')
    link = [compiler, '-shared', '-Wl,-Bsymbolic', *objects, f'-L{libraries}', '-lc10', '-ltorch_cpu', '-ldl']
    run([*link, '-o', linked])
    Path(linked).rename(library)


def with_calls_for_ptx(source: str) -> str:
    """`asm("..." : outputs : inputs : "memory")` as a call of `ptx` (ptx.h), on the same lines."""

    def call(match: re.Match) -> str:
        text, outputs, inputs, *clobbers = f'{match[1].replace("::", ": :")}::'.split(':')
        calls = [
            re.sub(r'"[+=]?\w"\(', f'cuda_on_cpu::{kind}(', operands)
            for kind, operands in (('output', outputs), ('input', inputs))
            if operands.strip()
        ]
        result = f'cuda_on_cpu::ptx({text}, {{{", ".join(calls)}}});'
        return result + '\n' * (match[0].count('\n') - result.count('\n'))

    return re.sub(r'asm(?: volatile)?\((.*?)\);', call, source, flags=re.DOTALL)


def run(command: Sequence[str]) -> None:
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f'{" ".join(command)}\n{process.stderr}')
