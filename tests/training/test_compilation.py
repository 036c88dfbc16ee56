"""--compile: backbone and neck through `torch.compile`, and without it where that fails."""

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bioattn_mm.errors import InputError
from bioattn_mm.training.compilation import compile_parts


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 4:
            raise InputError('expected four numbers')
        return self.linear(x).sin()


def parts() -> nn.Sequential:
    return nn.Sequential(OrderedDict(backbone=Part(), neck=Part(), head=Part()))


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr('bioattn_mm.training.compilation.print_log', lambda line, *args: lines.append(line))
    return lines


def failing(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
    raise ValueError('a compiler that fails')


def test_what_is_compiled(warnings: list[str]) -> None:
    torch.compiler.reset()
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        graphs.append(graph)
        return graph

    model, x = parts(), torch.randn(3, 4)
    names, expected = list(model.state_dict()), model(x)
    assert compile_parts(model, backend, dynamic=True) == ['backbone', 'neck']
    for size in (3, 5, 7):
        model(torch.randn(size, 4)).sum().backward()
    torch.testing.assert_close(model(x), expected)
    assert len(graphs) == 2  # of all sizes
    assert list(model.state_dict()) == names
    with pytest.raises(InputError, match='expected four numbers'):
        model(torch.randn(3, 5))
    assert not warnings
    with pytest.raises(InputError, match='--compile needs a model with a backbone: Part has none'):
        compile_parts(Part(), 'eager', dynamic=None)


def test_a_backbone_without_a_graph_for_all_sizes_has_one_for_each(warnings: list[str]) -> None:
    torch.compiler.reset()
    graphs, model = [], parts()
    model.backbone.exports_any_size = False
    compile_parts(model, lambda graph, inputs: graphs.append(graph) or graph, dynamic=True)
    for size in (3, 5, 7):
        model(torch.randn(size, 4))
    assert len(graphs) == 3 + 1 and not warnings


@pytest.mark.parametrize('in_backward', [False, True])
def test_what_fails_runs_without(in_backward: bool, warnings: list[str]) -> None:
    """The backward pass is compiled with the forward pass: later, there would be nothing to go back to."""
    from torch._dynamo.backends.common import aot_autograd

    torch.compiler.reset()
    model, x = parts(), torch.randn(3, 4)
    model(x).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    backend = aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=failing) if in_backward else failing
    compile_parts(model, backend, dynamic=None)
    for _ in range(2):
        model.zero_grad()
        model(x).sum().backward()
        torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)
    assert [line.split()[0] for line in warnings] == ['backbone', 'neck']
    assert all('runs without being compiled' in line and 'a compiler that fails' in line for line in warnings)
