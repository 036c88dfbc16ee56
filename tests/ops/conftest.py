"""Fixtures of the operator tests."""

import pytest

from bioattn_mm.ops.backends import LIBRARY_IS_LOADED

needs_library = pytest.mark.skipif(not LIBRARY_IS_LOADED, reason='the compiled operators were not built')


@pytest.fixture(params=['reference', pytest.param('cpu', marks=needs_library)])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that runs on the CPU."""
    return request.param
