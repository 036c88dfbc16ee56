"""Layer normalisation against PyTorch's, in bfloat16 by the kernel for it."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from bioattn_mm.layers.layer_norm import LayerNorm
from bioattn_mm.ops import layer_norm
from tests.ops.conftest import check_any_number_of_threads, needs_library

EPS = 1e-6


def make_inputs(
    shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, parameter_dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    x = (3 * torch.randn(shape) + 1).to(dtype)
    weight, bias = torch.randn(2, shape[-1], dtype=parameter_dtype)
    return [x.requires_grad_(), weight.clone().requires_grad_(), bias.clone().requires_grad_()]


def output_and_gradients(inputs: list[torch.Tensor], function: Callable = layer_norm) -> list[torch.Tensor]:
    output = function(*inputs, EPS)
    weights = torch.linspace(-1, 1, output.numel()).view_as(output).bfloat16().to(output)
    return [output, *torch.autograd.grad(output, inputs, weights)]


def pytorchs(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


@needs_library
@pytest.mark.parametrize('shape', [(2, 5, 7, 72), (3, 1, 96), (131, 16), (70, 17), (9, 288), (0, 32)], ids=str)
def test_equals_pytorch_in_float64(shape: tuple[int, ...]) -> None:
    if not torch.ops.bioattn_mm.allow_bfloat16_instructions(True):
        pytest.skip('this processor has no instructions of bfloat16: it runs what the next test compares')
    inputs = make_inputs(shape)
    exact = output_and_gradients([x.detach().double().requires_grad_() for x in inputs], pytorchs)
    for got, want, like in zip(output_and_gradients(inputs), exact, [inputs[0], *inputs], strict=True):
        # Nothing is rounded to bfloat16 but the output and the gradient of x.
        tolerance = 2**-8 if like.dtype == torch.bfloat16 else 1e-5
        assert got.dtype == like.dtype and got.shape == like.shape
        scale = want.abs().max().item() if want.numel() else 0
        torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance * scale)


@needs_library
@pytest.mark.parametrize(('channels', 'allowed'), [(72, False), (8, True)])
def test_what_the_kernel_does_not_take_runs_in_pytorch(channels: int, allowed: bool) -> None:
    inputs = make_inputs((2, 5, channels))
    torch.ops.bioattn_mm.allow_bfloat16_instructions(allowed)
    try:
        results = output_and_gradients(inputs)
    finally:
        torch.ops.bioattn_mm.allow_bfloat16_instructions(True)
    for got, want in zip(results, output_and_gradients(inputs, pytorchs), strict=True):
        assert torch.equal(got, want)


@needs_library
def test_a_token_far_from_zero_keeps_its_digits() -> None:
    x, weight, bias = make_inputs((3, 72))
    with torch.no_grad():
        x[0] += 512
        x[1] = 512
        x[2, 5] = float('nan')
    got, want = layer_norm(x, weight, bias, EPS), F.layer_norm(x.float(), (72,), weight, bias, EPS)
    torch.testing.assert_close(got.float(), want, rtol=2**-8, atol=2**-8, equal_nan=True)


@needs_library
def test_takes_tensors_in_any_layout() -> None:
    x, *parameters = make_inputs((2, 72, 5, 6))
    inputs = [x.detach().permute(0, 2, 3, 1).requires_grad_(), *[p.detach().new_ones(72) for p in parameters]]
    output = layer_norm(*inputs, EPS)
    (grad,) = torch.autograd.grad(output.transpose(1, 2), inputs[0], torch.ones_like(output.transpose(1, 2)))
    want = F.layer_norm(inputs[0].float(), (72,), *inputs[1:], EPS)
    torch.testing.assert_close(output.float(), want, rtol=2**-8, atol=2**-8)
    torch.testing.assert_close(grad.float(), torch.zeros_like(want), rtol=0, atol=1e-2)


@needs_library
def test_is_the_same_for_any_number_of_threads() -> None:
    inputs = make_inputs((1500, 72))
    check_any_number_of_threads(lambda: output_and_gradients(inputs))


@needs_library
def test_operator_is_registered_as_torch_expects() -> None:
    torch.library.opcheck(torch.ops.bioattn_mm.layer_norm.default, [*make_inputs((2, 3, 72)), EPS])


@pytest.mark.parametrize(
    ('dtype', 'parameter_dtype'),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float64, torch.float64)],
    ids=str,
)
def test_other_dtypes_run_in_pytorch(dtype: torch.dtype, parameter_dtype: torch.dtype) -> None:
    x, weight, bias = make_inputs((4, 24), dtype, parameter_dtype)
    assert torch.equal(layer_norm(x, weight, bias, EPS), F.layer_norm(x, (24,), weight, bias, EPS))


def test_layer_is_pytorchs_layer() -> None:
    layer = LayerNorm(24)
    assert isinstance(layer, torch.nn.LayerNorm) and list(layer.state_dict()) == ['weight', 'bias']
    x = torch.randn(2, 24)
    assert torch.equal(layer(x), torch.nn.LayerNorm(24)(x))
