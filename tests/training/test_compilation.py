"""--compile: backbone and neck through `torch.compile`, and without it where that fails."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from torch import Tensor, nn

from bioattn_mm.errors import InputError
from bioattn_mm.training.compilation import compile_parts
from bioattn_mm.training.config.computation import set_computation
from tests.needs import needs
from tests.tools.running import InProcess
from tests.training.short_trainings import train


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 4:
            raise InputError('expected four numbers')
        return self.linear(x).sin()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.neck, self.head = Part(), Part(), Part()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.neck(self.backbone(x)))


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

    model, x = Model(), torch.randn(3, 4)
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


def test_what_fails_runs_without(warnings: list[str]) -> None:
    torch.compiler.reset()
    model, x = Model(), torch.randn(3, 4)
    expected = model(x)
    compile_parts(model, failing, dynamic=None)
    for _ in range(2):
        torch.testing.assert_close(model(x), expected)
    line = "runs without being compiled, which failed: backend='failing' raised: ValueError: a compiler that fails"
    assert warnings == [f'backbone {line}', f'neck {line}']


def test_a_backward_pass_that_fails(warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # It is compiled with the forward pass: later, there would be nothing to go back to.
    torch.compiler.reset()
    from torch._dynamo.backends.common import aot_autograd

    model, x = Model(), torch.randn(3, 4)
    model(x).sum().backward()
    expected = model.backbone.linear.weight.grad
    model.zero_grad()
    compile_parts(model, aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=failing), dynamic=None)
    model(x).sum().backward()
    torch.testing.assert_close(model.backbone.linear.weight.grad, expected)
    assert [line.split()[0] for line in warnings] == ['backbone', 'neck']


@pytest.mark.every_compilation
@needs('compiler')
def test_a_run_of_the_tools(workplace: Path, tool: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    # Its own random numbers would drop other paths.
    monkeypatch.setattr('torch._inductor.config.fallback_random', True)
    expected = train(tool, workplace, 'upernet', 'eager')
    assert train(tool, workplace, 'upernet', 'compiled', '--compile') == pytest.approx(expected, rel=1e-3)
    (path,) = (workplace / 'compiled').rglob('*.log')
    log = path.read_text()
    assert 'compiled with inductor at the first step' in log
    assert 'runs without being compiled' not in log


def test_backend_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="torch.compile has no backend 'gcc': expected one of .*inductor"):
        set_computation(Config(dict(optim_wrapper={})), compile='gcc')


@pytest.mark.parametrize(('scope', 'dynamic'), [('mmdet', True), ('mmseg', None)])
def test_images_of_detectors_have_many_sizes(scope: str, dynamic: bool | None) -> None:
    config = Config(dict(default_scope=scope, optim_wrapper={}))
    set_computation(config, compile='inductor')
    assert config.custom_hooks == [dict(type='bioattn_mm.CompileHook', backend='inductor', dynamic=dynamic)]
