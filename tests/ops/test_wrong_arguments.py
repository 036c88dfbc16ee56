"""What operators refuse, in one line that names the argument."""

import inspect
import re

import pytest
import torch
from torch import Tensor

from bioattn_mm import ops
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.conftest import needs_library
from tests.ops.kernels import to_double


def arguments_of(name: str) -> dict[str, Tensor]:
    """An operator's tensors in float32, by the names of its arguments."""
    parameters = inspect.signature(getattr(ops, name)).parameters.values()
    names = [parameter.name for parameter in parameters if 'Tensor' in str(parameter.annotation)]
    return dict(zip(names, OPERATORS[name].inputs({}, 'cpu', torch.float32)))


@pytest.mark.parametrize(('name', 'argument'), [(name, each) for name in OPERATORS for each in arguments_of(name)])
def test_a_tensor_that_does_not_fit_the_others_is_refused(name: str, argument: str) -> None:
    """Of another shape, an integer, of another precision, and on another device."""
    arguments = arguments_of(name)
    right = arguments[argument]
    wrong = [right[..., None], right.to(torch.int32)]
    if len(arguments) > 1:
        wrong.append(right.to('meta'))
        wrong += [right.double()] if right.is_floating_point() else [right.float()]
    for tensor in wrong:
        with pytest.raises(ValueError, match=rf'\b{argument}\b') as error:
            OPERATORS[name].run(*(arguments | {argument: tensor}).values())
        said = re.match(r'(\w+) (must be|must have shape|is on|is for)\b', str(error.value))
        assert said and said[1] in arguments, str(error.value)


WINDOW = 'is not the square of an odd number'


def call(name: str, **changes: object) -> Tensor:
    """An operator with some other arguments than the right ones."""
    parameters = inspect.signature(getattr(ops, name)).parameters
    others = {key: value for key, value in dict(grid=(3, 4), eps=1e-3).items() if key in parameters}
    return getattr(ops, name)(**(arguments_of(name) | others | changes))


@pytest.mark.parametrize(
    ('name', 'wrong', 'message'),
    [
        ('aggregated_attention', dict(window_bias=torch.zeros(2, 16)), rf'window_bias.*16 {WINDOW}'),
        ('sliding_window_qk', dict(bias=torch.zeros(2, 16)), rf'bias must be \(heads, k \* k\) .*: 16 {WINDOW}'),
        ('sliding_window_qk', dict(bias=torch.zeros(())), r'bias must be .* with k odd, got shape \(\)'),
        ('sliding_window_av', dict(weights=torch.zeros(2, 5, 7, 2, 8)), f'weights must be .*: 8 {WINDOW}'),
        ('peripheral_attention', dict(scale=torch.zeros(16, 5, 5)), 'scale is for a grid of 5 x 5 tokens, but query'),
        ('log_cpb_table', dict(horizontal=torch.zeros(14, requires_grad=True)), r'pass horizontal.detach\(\)'),
        ('log_cpb_table', dict(weight=torch.zeros(48)), r'weight must be .*, got shape \(48,\)'),
        ('gated_convolution', dict(x=torch.zeros(2, 5, 33)), r'x must be \(B, H, W, 2 C\), got shape \(2, 5, 33\)'),
        ('gated_convolution', dict(x_bias=torch.zeros(16)), r'x_bias must have shape \(32,\)'),
        ('deformable_attention', dict(value=torch.zeros(2, 49, 8)), r'\(B, N, heads, d\), got shape \(2, 49, 8\)'),
        ('deformable_attention', dict(shapes=torch.tensor([[5, 7], [3, 4], [1, 3]])), 'have the 49 tokens of value'),
        (
            'deformable_attention',
            dict(shapes=torch.tensor([[5, 7], [7, 4], [1, -14]])),
            'have the 49 tokens of value',
        ),
        ('gelu_pool', dict(grid=(2, 0)), 'grid must be 1 x 1 or larger, got 2 x 0'),
        ('gelu_pool_norm', dict(grid=(0, 3)), 'grid must be 1 x 1 or larger, got 0 x 3'),
        ('gelu_pool_norm', dict(x=torch.zeros(2, 0, 3, 24)), r'x must be \(B, H, W, C\), got shape \(2, 0, 3, 24\)'),
    ],
)
def test_the_message_about_what_does_not_fit(name: str, wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(name, **wrong)


@needs_library
@pytest.mark.parametrize(
    ('name', 'argument', 'wrong', 'largest'),
    [
        ('aggregated_attention', 'pooled_bias_rows', -1, 6),
        ('aggregated_attention', 'pooled_bias_rows', 7, 6),
        ('cosine_attention', 'pooled_bias_rows', 7, 6),
        ('cosine_attention', 'pooled_bias_columns', 10, 9),
    ],
)
def test_an_index_outside_of_the_bias_is_refused(name: str, argument: str, wrong: int, largest: int) -> None:
    index = arguments_of(name)[argument]
    index[3, 1] = wrong
    with pytest.raises(IndexError, match=f'{argument} must be 0 to {largest}, .* got {wrong}'):
        call(name, **{argument: index}, backend='cpu')


@pytest.mark.parametrize(
    ('argument', 'message'),
    [
        ('key', 'key must be torch.float64'),
        ('query', 'key must be torch.float32'),
        ('pooled_bias_rows', 'torch.int64'),
    ],
)
def test_what_autocast_does_not_cast(argument: str, message: str) -> None:
    arguments = {name: to_double(tensor) for name, tensor in arguments_of('aggregated_attention').items()}
    arguments[argument] = arguments[argument].float()
    with torch.autocast('cpu', torch.bfloat16), pytest.raises(ValueError, match=message):
        call('aggregated_attention', **arguments)
