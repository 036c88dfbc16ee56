"""What every operator promises, on the tensors of `bioattn_mm.ops.samples`; values are in test_formulas.py."""

import inspect
import io
import sys
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from bioattn_mm.ops import chunked_attention, log_cpb
from bioattn_mm.ops.registration import NUM_CAST
from bioattn_mm.ops.samples import HALF, OPERATORS
from tests.ops.conftest import (
    IN_USE,
    OF_BFLOAT16,
    Calls,
    Place,
    capability,
    check_any_number_of_threads,
    needs_cuda,
    needs_library,
)
from tests.ops.kernels import to_double

NAMES = [name for name in OPERATORS if 'cpu' in OPERATORS[name].dtypes]
ATTENTION = [name for name in NAMES if 'attention' in name]
# The package has the functions under those names.
AGGREGATED, PERIPHERAL = (
    sys.modules[OPERATORS[f'{name}_attention'].run.__module__] for name in ('aggregated', 'peripheral')
)
# Autocast makes no other dtypes of these tensors than one: the layers cast.
OF_AUTOCAST = [
    (name, dtype)
    for name in NAMES
    for dtype in HALF
    if dtype in OPERATORS[name].dtypes['cpu'] and name not in ('add_norm', 'cosine_attention')
]
COMPILED = [
    pytest.param(name, device, marks=needs_library if device == 'cpu' else needs_cuda)
    for name in OPERATORS
    for device in OPERATORS[name].dtypes
]
SMALL = dict(batch=1, grid=(3, 4), pooled_grid=(1, 2), channels=3, rows=3, columns=4, height=4, width=5, hidden=6)
# Several blocks of threads, none of them whole.
LARGE = dict(grid=(40, 70), channels=24, height=30, width=31, rows=80, columns=33)
# The kernels of the first three take 16 channels at a time; peripheral attention has many parameters for a token.
SIZES = {
    'add_norm': (SMALL | dict(grid=(2, 2), channels=16), LARGE),
    'gated_convolution': (SMALL | dict(grid=(2, 3), channels=16), LARGE | dict(channels=32)),
    'gelu_pool': (SMALL | dict(channels=9), LARGE | dict(channels=40)),
    'peripheral_attention': (SMALL | dict(grid=(2, 3), heads=1), LARGE | dict(grid=(23, 30))),
}


def inputs_of(name: str, sizes: dict, dtype: torch.dtype = torch.float32, device: str = 'cpu') -> list[Tensor]:
    """The tensors, of those sizes that the operator has, as leaves of autograd."""
    taken = inspect.signature(OPERATORS[name].make).parameters
    inputs = OPERATORS[name].inputs({key: value for key, value in sizes.items() if key in taken}, device, dtype)
    for tensor in OPERATORS[name].leaves(inputs):
        tensor.requires_grad_()
    return inputs


def run_on(name: str, inputs: list[Tensor], backend: str, *leaves: Tensor) -> Tensor:
    """An operator with other leaves; logits of what is outside of the image are 0 instead of -inf."""
    values = iter(leaves)
    output = OPERATORS[name].run(*(next(values) if t.requires_grad else t for t in inputs), backend=backend)
    return torch.where(output.isfinite(), output, 0)


@pytest.mark.parametrize('name', NAMES)
def test_gradients_are_those_of_finite_differences(name: str, backend: str) -> None:
    inputs = inputs_of(name, SIZES.get(name, (SMALL,))[0], torch.float64)
    assert torch.autograd.gradcheck(partial(run_on, name, inputs, backend), OPERATORS[name].leaves(inputs))


@needs_library
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('name', NAMES)
def test_the_same_for_any_number_of_threads(name: str, dtype: torch.dtype) -> None:
    if dtype not in OPERATORS[name].dtypes['cpu']:
        dtype = torch.float64
    inputs = inputs_of(name, SIZES.get(name, (None, LARGE))[1], dtype)
    check_any_number_of_threads(lambda: OPERATORS[name].values_and_gradients(inputs, 'cpu'))


@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('name', ATTENTION)
def test_half_precision_is_a_format_of_storage(name: str, dtype: torch.dtype, backend: str) -> None:
    """The only rounding is that of the output, which the backward pass reads, too.

    On the CPU in bfloat16, processors with instructions for its products round the factors, too, and sum in float32.
    """
    operator, inputs = OPERATORS[name], inputs_of(name, dict(grid=(5, 9), channels=24), dtype)
    want, *wanted = operator.values_and_gradients([*map(to_double, inputs)], 'reference')
    # The best that has no kernels for bfloat16, and the best.
    best = dict.fromkeys(('avx512' if IN_USE in OF_BFLOAT16 else IN_USE, IN_USE))
    for instructions in best if backend == 'cpu' else ('of PyTorch',):
        with capability(instructions) if backend == 'cpu' else nullcontext():
            output, *gradients = operator.values_and_gradients(inputs, backend)
        assert [t.dtype for t in (output, *gradients)] == [dtype, *(t.dtype for t in operator.leaves(inputs))]
        rtol, atol = 0.016 if dtype == torch.bfloat16 else 1e-3, 1e-5
        if instructions in OF_BFLOAT16 and dtype == torch.bfloat16:
            atol = 2**-8 * want.abs().max().item()
        if instructions == 'of PyTorch':  # which rounds in between
            rtol, atol, gradients = 0, 2e-2 * want.abs().max().item(), wanted
        torch.testing.assert_close(output, want.to(dtype), rtol=rtol, atol=atol)
        for one, other in zip(gradients, wanted, strict=True):
            scale = max(other.abs().max().item(), 1e-3)  # that of conv_bias is zero
            torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-2 * scale)


# An operator, sizes, the limit of elements in a chunk, which holds two rows, and a function that is called for each.
WEIGHTS = 'MAX_WEIGHTS_PER_CHUNK'
PYTORCHS = (F, 'scaled_dot_product_attention')
CHUNKS = [
    ('aggregated_attention', dict(grid=(9, 6)), (AGGREGATED, WEIGHTS, 720), (AGGREGATED, '_attend')),
    ('relative_bias_attention', dict(grid=(9, 6), heads=3), (chunked_attention, WEIGHTS, 3888), PYTORCHS),
    ('log_cpb_table', dict(columns=37, hidden=10), (log_cpb, 'MAX_HIDDEN_PER_CHUNK', 740), (F, 'linear')),
    *(
        ('peripheral_attention', dict(grid=grid), (PERIPHERAL, 'CHUNK_NUMEL', numel), (F, 'conv2d'))
        for grid, numel in (((5, 6), 1), ((5, 6), 1000), ((1, 9), 700), ((9, 1), 1000))
    ),
]


@pytest.mark.parametrize(('name', 'sizes', 'limit', 'function'), CHUNKS)
def test_formulas_in_chunks_give_the_same(name: str, sizes: dict, limit: tuple, function: tuple, monkeypatch) -> None:
    inputs = OPERATORS[name].inputs(sizes, 'cpu', torch.float64)
    whole = OPERATORS[name].values_and_gradients(inputs, 'reference')
    called = Mock(side_effect=getattr(*function))
    monkeypatch.setattr(*limit)
    monkeypatch.setattr(*function, called)
    with torch.no_grad():
        torch.testing.assert_close(OPERATORS[name].run(*inputs, backend='reference'), whole[0])
    assert called.call_count == 5 or name == 'peripheral_attention'
    torch.testing.assert_close(OPERATORS[name].values_and_gradients(inputs, 'reference'), whole)


@pytest.mark.parametrize(
    'name',
    [*(name for name in ATTENTION if name != 'deformable_attention'), 'sliding_window_qk', 'sliding_window_av'],
)
def test_nan_of_a_query_goes_no_further_and_large_queries_stay_finite(name: str, place: Place) -> None:
    operator = OPERATORS[name]
    if place.backend == 'cuda' and 'cuda' not in operator.dtypes:
        pytest.skip('not compiled for CUDA')
    query, *others = operator.inputs({}, place.device, torch.float32)
    results = operator.values_and_gradients([1e4 * query, *others], place.backend)
    assert all(result.isfinite().all() for result in results[name == 'sliding_window_qk' :])  # whose edges are not
    at = (0, 1, 5) if name == 'peripheral_attention' else (0, 2, 3, 1)
    query[at][2] = float('nan')
    output = operator.run(query, *others, backend=place.backend)
    assert output[at].isnan().all() and output.isnan().sum() == output.shape[-1]


@pytest.mark.parametrize(('name', 'dtype'), OF_AUTOCAST, ids=str)
def test_autocast(name: str, dtype: torch.dtype, backend: str) -> None:
    run = partial(OPERATORS[name].run, backend=backend)
    inputs = inputs_of(name, {})
    half = [t.to(other.dtype) for t, other in zip(inputs, inputs_of(name, {}, dtype), strict=True)]
    exact = [t.double() if t.is_floating_point() else t for t in inputs]
    want, want_exact = run(*half), run(*exact)
    with Calls() as calls, torch.no_grad():
        run(*inputs)
    place = max(place for place, tensor in enumerate(half) if tensor.dtype == dtype)
    inputs[place] = half[place].detach().requires_grad_()  # as autocast makes one input and not the others
    with torch.autocast('cpu', dtype):
        output = run(*inputs)
        assert torch.equal(run(*exact), want_exact)
        if name in NUM_CAST and backend == 'cpu':  # exported graphs call the compiled operator
            ((function, arguments),) = calls.kept
            result = function(*arguments)
            assert torch.equal(result if isinstance(result, Tensor) else result[0], want)
    assert (output.dtype, want_exact.dtype) == (dtype, torch.float64)
    # With gradients, PyTorch's attention is another function, which rounds differently.
    scaled_dot_product = (name, backend) == ('relative_bias_attention', 'reference')
    torch.testing.assert_close(output, want, rtol=0, atol=1e-2 if scaled_dot_product else 0)
    leaves = OPERATORS[name].leaves(inputs)
    gradients = torch.autograd.grad(output, leaves, torch.ones_like(output))
    assert [t.dtype for t in gradients] == [t.dtype for t in leaves]


@pytest.mark.parametrize(('name', 'device'), COMPILED)
def test_registered_as_torch_expects(name: str, device: str) -> None:
    with Calls() as calls, torch.no_grad():
        OPERATORS[name].run(*inputs_of(name, dict(batch=1), device=device), backend=device)
    ((function, arguments),) = calls.kept
    # Schema, autograd registration, fake tensors, and AOT dispatch with dynamic shapes.
    first = arguments[0].detach().requires_grad_(0 not in OPERATORS[name].constants)
    torch.library.opcheck(function, (first, *arguments[1:]))


@pytest.mark.parametrize('autocast', [False, True], ids=['float32', 'autocast'])
@pytest.mark.parametrize('name', NAMES)
def test_transforms_of_torch_func(name: str, autocast: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if autocast and backend == 'reference':
        pytest.skip("PyTorch's attention has kernels that round differently")
    monkeypatch.setattr(chunked_attention, 'MAX_WEIGHTS_PER_CHUNK', 1)
    inputs = inputs_of(name, {})
    leaves = OPERATORS[name].leaves(inputs)

    def total(*values: Tensor) -> Tensor:
        return run_on(name, inputs, backend, *values).float().square().sum()

    both = [torch.stack((leaf, 0.5 * leaf)).detach() for leaf in leaves]
    with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
        want = torch.autograd.grad(total(*leaves), leaves)
        gradients = torch.func.grad(total, argnums=tuple(range(len(leaves))))
        torch.testing.assert_close(gradients(*(leaf.detach() for leaf in leaves)), want)
        of_each = torch.func.vmap(gradients)(*both)
        torch.testing.assert_close(tuple(gradient[0] for gradient in of_each), want)


@needs_library
@pytest.mark.parametrize('name', NAMES)
def test_a_derivative_that_there_is_not_is_an_error(name: str) -> None:
    """PyTorch would take it for zero: the second one, and that in forward mode."""
    inputs, forward_mode = inputs_of(name, {}), f'{name} has no derivative in forward mode'
    leaves = OPERATORS[name].leaves(inputs)
    output = run_on(name, inputs, 'cpu', *leaves).square().sum()
    (gradient, *_) = torch.autograd.grad(output, leaves, create_graph=True)
    with pytest.raises(RuntimeError, match=f'{name}_backward'):
        gradient.sum().backward()
    tensor = leaves[0].detach()

    def run(tensor: Tensor) -> Tensor:
        return run_on(name, inputs, 'cpu', tensor, *leaves[1:])

    with torch.no_grad(), pytest.raises(NotImplementedError, match=forward_mode):
        torch.func.jvp(run, (tensor,), (tensor,))
    with forward_ad.dual_level(), torch.no_grad():
        assert torch.equal(run(tensor), run(tensor))
        with pytest.raises(NotImplementedError, match=forward_mode):
            run(forward_ad.make_dual(tensor, tensor))


class Module(torch.nn.Module):
    """An operator as a module."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.run = OPERATORS[name].run

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(*inputs)


@needs_library
@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
@pytest.mark.parametrize(
    ('name', 'dtype'),
    [
        *((name, None) for name in NAMES),
        *((name, torch.bfloat16) for name in ('relative_bias_attention', 'sliding_window_qk', 'sliding_window_av')),
    ],
    ids=str,
)
def test_compiles_into_one_graph_exports_and_is_saved_by_torch_jit(name: str, dtype: torch.dtype | None) -> None:
    torch.compiler.reset()
    inputs, module = inputs_of(name, {}), Module(name)
    others = inputs_of(name, dict(grid=(9, 4), pooled_grid=(3, 2), rows=4, columns=7, height=6, width=9))
    dynamic = tuple(
        {axis: torch.export.Dim.AUTO for axis in range(one.dim()) if one.shape[axis] != other.shape[axis]}
        for one, other in zip(inputs, others, strict=True)
    )
    with torch.autocast('cpu', dtype, enabled=dtype is not None):
        want = module(*inputs)
        compiled = torch.compile(module, fullgraph=True, dynamic=True, backend='aot_eager')
        torch.testing.assert_close(compiled(*inputs), want)
        weights = want.isfinite().to(want.dtype)
        leaves = OPERATORS[name].leaves(inputs)
        results = (torch.autograd.grad(run(*inputs), leaves, weights) for run in (compiled, module))
        torch.testing.assert_close(*results)
        exported = torch.export.export(module, tuple(inputs), dynamic_shapes=(dynamic,))
        torch.testing.assert_close(exported.module()(*others), module(*others))
    if dtype is None:
        torch.jit.save(torch.jit.trace(module, tuple(inputs), check_trace=False), file := io.BytesIO())
        file.seek(0)
        torch.testing.assert_close(torch.jit.load(file)(*inputs), want)
