"""Fixtures of the operator tests."""

import pytest
import torch

from bioattn_mm.ops.backends import CUDA_ARCHITECTURES, LIBRARY_IS_LOADED

needs_library = pytest.mark.skipif(not LIBRARY_IS_LOADED, reason='the compiled operators were not built')
needs_cuda = pytest.mark.skipif(
    not (torch.cuda.is_available() and CUDA_ARCHITECTURES),
    reason='there is no GPU, or the operators were not compiled for CUDA',
)


@pytest.fixture(params=['reference', pytest.param('cpu', marks=needs_library)])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that runs on the CPU."""
    return request.param
