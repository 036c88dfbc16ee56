"""What the operator tests share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from bioattn_mm.ops.backends import LIBRARY_IS_LOADED

from ..needs import needs

needs_library, needs_cuda = needs('operators'), needs('CUDA operators')
# The instruction set that the CPU operators use, and all up to it, the simplest first. Those above are not for tests:
# who lowers the one in use may have lowered oneDNN's, too.
IN_USE = torch.ops.bioattn_mm.cpu_capability() if LIBRARY_IS_LOADED else 'none'
CAPABILITIES = torch.ops.bioattn_mm.cpu_capabilities() if LIBRARY_IS_LOADED else []
CAPABILITIES = CAPABILITIES[: CAPABILITIES.index(IN_USE) + 1] if LIBRARY_IS_LOADED else []
OF_BFLOAT16 = 'avx512_bf16'
needs_bfloat16_kernels = pytest.mark.skipif(
    IN_USE != OF_BFLOAT16, reason=f'kernels for bfloat16 need {OF_BFLOAT16}; in use: {IN_USE}'
)


@contextmanager
def capability(name: str) -> Iterator[None]:
    """Within it the CPU operators run with an instruction set of `CAPABILITIES`."""
    torch.ops.bioattn_mm.set_cpu_capability(name)
    try:
        yield
    finally:
        torch.ops.bioattn_mm.set_cpu_capability(IN_USE)


def without_bfloat16_kernels() -> str:
    """The instruction set in use, or the one below it if that has kernels for bfloat16."""
    return 'avx512' if IN_USE == OF_BFLOAT16 else IN_USE


def check_any_number_of_threads(run: Callable[[], list[torch.Tensor]]) -> None:
    """The results of `run` are the same to the last bit with one, two and three threads."""
    results, threads = [], torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append(run())
    finally:
        torch.set_num_threads(threads)
    for others in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], others, strict=True))


def check_storage(output: torch.Tensor, exact: torch.Tensor, backend: str) -> None:
    """Half precision is a format of storage: the only rounding is that of the output.

    On the CPU in bfloat16, processors with instructions for its products round the factors, too, and sum in float32.
    """
    bfloat16 = output.dtype == torch.bfloat16
    atol = 2**-8 * exact.abs().max().item() if bfloat16 and backend == 'cpu' else 1e-5
    torch.testing.assert_close(output, exact.to(output.dtype), rtol=0.016 if bfloat16 else 1e-3, atol=atol)


def check_compiles_and_exports(operator: Callable[..., torch.Tensor], arguments: dict[str, torch.Tensor]) -> None:
    """An operator goes into one graph of `torch.compile` and into `torch.export`, with the same output."""

    class Module(torch.nn.Module):
        def forward(self, **arguments: torch.Tensor) -> torch.Tensor:
            return operator(**arguments)

    want = operator(**arguments)
    compiled = torch.compile(Module(), fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(**arguments), want)
    exported = torch.export.export(Module(), (), arguments)
    torch.testing.assert_close(exported.module()(**arguments), want)


@pytest.fixture(params=['reference', pytest.param('cpu', marks=needs_library)])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that runs on the CPU."""
    return request.param
