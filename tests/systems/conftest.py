"""What several tests of the layers need."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.ops.conftest import backend  # noqa: F401  a fixture


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the backbones log about the weights that they load."""
    lines = []
    monkeypatch.setattr('bioattn_mm.systems.common.backbone.print_log', lambda line, logger: lines.append(line))
    return lines


@pytest.fixture
def record_sizes() -> Callable:
    """Context manager whose value is a list: the number of elements of every tensor that an operator returns."""

    @contextmanager
    def record() -> Iterator[list[int]]:
        sizes = []

        class Record(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                result = function(*args, **(kwargs or {}))
                sizes.extend(leaf.numel() for leaf in tree_leaves(result) if torch.is_tensor(leaf))
                return result

        with Record():
            yield sizes

    return record
