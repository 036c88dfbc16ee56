"""What several tests of the layers need."""

import pytest

from tests.ops.conftest import backend  # noqa: F401  a fixture


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the backbones log about the weights that they load."""
    lines = []
    monkeypatch.setattr('bioattn_mm.systems.common.backbone.print_log', lambda line, logger: lines.append(line))
    return lines
