"""LayerNorm and copies of weights under autocast."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from bioattn_mm.systems.transnext import blocks, half_precision
from bioattn_mm.systems.transnext.half_precision import LayerNorm
from bioattn_mm.training.strategies import FSDP2Strategy
from tests.needs import needs

from .small_model import SMALL, model, step


def test_layer_norm_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU as on a GPU."""
    monkeypatch.setattr(half_precision, 'takes_bfloat16', torch.is_autocast_enabled)
    norm, x = LayerNorm(64), 3 + torch.randn(5, 64)
    nn.init.normal_(norm.weight, 1, 0.1)
    nn.init.normal_(norm.bias)
    with torch.autocast('cpu', torch.bfloat16):
        output = norm(x)
    assert output.dtype == torch.bfloat16
    # The input, weights and output are rounded to 1/256; of the input 3 is the mean.
    torch.testing.assert_close(output.float(), norm(x), rtol=0.02, atol=0.03)
    results = step(model(), torch.bfloat16)
    assert [{tensor.dtype for tensor in tensors} for tensors in results] == [{torch.bfloat16}, {torch.float32}]


@needs('operators')
def test_gradients_of_float16() -> None:
    """Operators sum in float32; in formulas small gradients of float16 vanish without a scale."""
    for got, want in zip(step(model(), torch.float16)[1], step(model())[1], strict=True):
        assert (got - want).norm() < 0.05 * want.norm() + 1e-4


class Wrapped(nn.Module):
    """A model with a backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = model()

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.backbone(images)


def test_parameters_of_ddp_and_fsdp(one_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(network: nn.Module) -> list[Tensor]:
        found = step(network, torch.bfloat16)[1]
        return [gradient.full_tensor() if isinstance(gradient, DTensor) else gradient for gradient in found]

    torch.testing.assert_close(gradients(DistributedDataParallel(Wrapped())), gradients(Wrapped()))
    of_parts = gradients(FSDP2Strategy(work_dir=str(tmp_path))._wrap_model(Wrapped()))
    # FSDP has parts of the parameters, which layers gather when they are called.
    monkeypatch.setattr(blocks, '_may_be_functions', lambda x: False)
    torch.testing.assert_close(of_parts, gradients(Wrapped()))


class Casts(TorchDispatchMode):
    """Counts casts."""

    number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001
        self.number += function is torch.ops.aten._to_copy.default and args[0].is_floating_point()
        return function(*args, **(kwargs or {}))


@needs('operators')  # without them, autocast also casts what each block computes
def test_weights_are_cast_once_for_a_stage() -> None:
    def casts_of(depth: int) -> int:
        backbone = model(arch=dict(SMALL, depths=(1, 1, depth, 1)))
        step(backbone, torch.bfloat16)  # makes the constants of this size
        with Casts() as casts:
            step(backbone, torch.bfloat16)
        return casts.number

    assert 0 < casts_of(4) == casts_of(2)


def test_a_gpu_takes_bfloat16_and_keeps_float16_apart() -> None:
    dtypes = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        norm, x = LayerNorm(8, device='cuda'), torch.empty(2, 8, device='cuda')
        for dtype in (torch.bfloat16, torch.float16):
            torch.set_autocast_enabled('cuda', True)
            torch.set_autocast_dtype('cuda', dtype)
            try:
                dtypes.append(norm(x.to(dtype)).dtype)
            finally:
                torch.set_autocast_enabled('cuda', False)
                torch.set_autocast_dtype('cuda', torch.float16)
                torch.clear_autocast_cache()
    assert dtypes == [torch.bfloat16, torch.float32]
