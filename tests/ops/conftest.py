"""What the operator tests share."""

from collections.abc import Callable

import pytest
import torch

from bioattn_mm.ops.backends import CUDA_ARCHITECTURES, LIBRARY_IS_LOADED

needs_library = pytest.mark.skipif(not LIBRARY_IS_LOADED, reason='the compiled operators were not built')
needs_cuda = pytest.mark.skipif(
    not (torch.cuda.is_available() and CUDA_ARCHITECTURES),
    reason='there is no GPU, or the operators were not compiled for CUDA',
)


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
