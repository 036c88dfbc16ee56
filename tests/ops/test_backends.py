"""Which backend runs, and what is said where the fast one does not."""

import functools
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from bioattn_mm.ops import backends, deformable_attention
from bioattn_mm.ops.backends import available_backends, capabilities_of, choose_backend
from bioattn_mm.ops.samples import OPERATORS
from tests.needs import needs

GPU = torch.device('cuda', 0)
FLOAT32 = torch.float32


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends that there is a GPU, and operators for some: `gpu(capability=(8, 6), compiled='8.0 9.0')`."""

    def pretend(capability: tuple[int, int], compiled: str, driver: int = 13000) -> None:
        properties = SimpleNamespace(name='Some GPU', major=capability[0], minor=capability[1])
        monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
        monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: properties)
        for name, value in dict(
            WHY_NOT_LOADED=None,
            CUDA_ARCHITECTURES=compiled,
            WHY_NOT_ON_CUDA=None if compiled else 'the operators were compiled without CUDA',
            CUDA_CAPABILITIES=capabilities_of(compiled),
            CUDA_RELEASES=(13010, driver),
        ).items():
            monkeypatch.setattr(backends, name, value)

    monkeypatch.delenv('BIOATTN_MM_BACKEND', raising=False)
    monkeypatch.setattr(backends, '_warn_once', functools.cache(backends._warn_once.__wrapped__))
    return pretend


@pytest.mark.parametrize(
    ('compiled', 'runs_on', 'not_on'),
    [
        ('8.0 9.0', (80, 89, 90), (75, 120)),
        ('8.0 9.0+PTX', (90,), (120,)),  # the driver does not compile PTX of a newer release
        ('8.6', (), (80,)),
        ('8.0+PTX', (), (75,)),
        ('9.0a', (90,), ()),
        ('9.0a+PTX', (), (100,)),
        ('10.0f', (103,), (120,)),
        ('Hopper', (75,), ()),  # not known: taken at its word
        ('', (), (80,)),
    ],
)
def test_compute_capability(gpu, compiled: str, runs_on: tuple[int, ...], not_on: tuple[int, ...]) -> None:
    for capability in (*runs_on, *not_on):
        gpu(divmod(capability, 10), compiled)
        assert available_backends(GPU) == ['cuda'] * (capability in runs_on) + ['reference']
    gpu((12, 0), '8.0 9.0+PTX', driver=13010)
    assert available_backends(GPU) == ['cuda', 'reference']


@pytest.mark.parametrize(
    ('compiled', 'driver', 'unsupported', 'message'),
    [
        ('8.0 9.0', 13000, None, 'capability 8.0 9.0, and Some GPU has 7.5; to build'),
        ('', 13000, None, 'the operators were compiled without CUDA; to build'),
        ('7.5', 12080, None, 'with CUDA 13.1, and the driver runs CUDA 12.8 at most'),
        ('7.5', 13000, 'takes 8 channels', 'takes 8 channels'),
    ],
)
def test_a_gpu_that_runs_pytorch_is_warned_of_once(
    gpu, compiled: str, driver: int, unsupported: str | None, message: str
) -> None:
    gpu((7, 5), compiled, driver)
    with pytest.warns(UserWarning, match=f'in PyTorch, slower: .*{message}'):
        assert choose_backend(GPU, None, unsupported) == 'reference'
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert choose_backend(GPU, None, unsupported) == choose_backend(GPU, 'reference', unsupported) == 'reference'


def test_a_backend_that_does_not_run_is_refused(gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu((8, 0), '8.0')
    assert choose_backend(GPU, None) == 'cuda'
    with pytest.raises(ValueError, match="backend 'cuda' cannot run: of 12 channels; the backend reference can"):
        choose_backend(GPU, 'cuda', 'of 12 channels')
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'cuda')
    with pytest.raises(ValueError, match="backend 'cuda' cannot run: of 12 channels"):
        choose_backend(GPU, None, 'of 12 channels')
    assert choose_backend(torch.device('cpu'), None, 'of 12 channels') == 'reference'
    gpu((7, 5), '8.0')
    with pytest.raises(ValueError, match="no backend 'cuda' for cuda: expected one of reference; .* has 7.5"):
        choose_backend(GPU, None)
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')
    assert choose_backend(torch.device('cpu'), None) == 'reference'
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'abacus')
    with pytest.raises(ValueError, match="no backend 'abacus' for cpu: expected one of .*reference"):
        choose_backend(torch.device('cpu'), None)


@needs('operators')
@pytest.mark.filterwarnings('ignore:attention on this GPU runs in PyTorch')
@pytest.mark.parametrize(
    ('name', 'device', 'sizes', 'dtype', 'reason'),
    [
        ('gated_convolution', 'cpu', dict(channels=12), FLOAT32, 'the CPU takes 16, 32, ... channels, got 12'),
        ('gated_convolution', 'cpu', {}, torch.float16, 'the CPU takes bfloat16, float32 and float64, got float16'),
        ('gelu_pool', 'cpu', dict(channels=8), FLOAT32, 'and 16 channels or more'),
        ('gelu_pool', 'cpu', {}, torch.float16, 'bfloat16, float32 and float64'),
        ('add_norm', 'cpu', dict(channels=6), FLOAT32, 'takes 16 channels or more and no float16, got 6'),
        ('gelu_pool_norm', 'cpu', {}, FLOAT32, 'is compiled for CUDA alone'),
        # Tensors without data stand for those on a GPU.
        ('gated_convolution', 'meta', dict(channels=15), FLOAT32, 'CUDA takes an even number of channels, got 15'),
        ('gated_convolution', 'meta', {}, torch.float64, 'CUDA takes float32, float16 and bfloat16, got float64'),
        ('add_norm', 'meta', dict(channels=5), FLOAT32, 'CUDA takes an even number of channels up to 4096, got 5'),
        ('gelu_pool_norm', 'meta', dict(height=24), FLOAT32, r'a grid that divides that of x, got \(16, 16\) and'),
        # Or fake ones, which not every torch has on a GPU.
        *(
            pytest.param('aggregated_attention', 'cuda', *row, marks=needs('torch for CUDA'))
            for row in (
                (dict(channels=12), FLOAT32, 'takes 8, 16, ... 64 channels a head, got 12'),
                (dict(channels=72), FLOAT32, 'takes 8, 16, ... 64 channels a head, got 72'),
                (dict(window_size=11), FLOAT32, 'takes windows of 1, 3, 5, 7 and 9, got 121 window offsets'),
                ({}, torch.float64, 'takes float32, float16 and bfloat16, got float64'),
            )
        ),
    ],
    ids=str,
)
def test_what_kernels_do_not_take_runs_in_pytorch(
    name: str, device: str, sizes: dict, dtype: torch.dtype, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, 'why_not_compiled', lambda device: None)
    operator = OPERATORS[name]
    with FakeTensorMode() if device == 'cuda' else nullcontext():
        inputs = operator.inputs(sizes, device, dtype)
        with pytest.raises(ValueError, match=f"'{device}' cannot run: {name} .*{reason}"):
            operator.run(*inputs, backend=device)
        output, want = operator.run(*inputs), operator.run(*inputs, backend='reference')
    assert output.shape == want.shape and (device != 'cpu' or torch.equal(output, want))


def test_sums_without_order_are_not_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, 'why_not_compiled', lambda device: None)
    monkeypatch.setattr(torch, 'are_deterministic_algorithms_enabled', lambda: True)
    value, *others = OPERATORS['deformable_attention'].inputs({}, 'meta', FLOAT32)
    deformable_attention(value, *others, backend='meta')
    with pytest.raises(ValueError, match='cannot run: deformable_attention on CUDA sums gradients in any order'):
        deformable_attention(value.requires_grad_(), *others, backend='meta')


def test_the_choice_is_made_while_a_graph_is_compiled() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + len(choose_backend(GPU, None, 'unsupported'))

    compiled = torch.compile(function, fullgraph=True, backend='eager')
    assert compiled(torch.zeros(2)).tolist() == 2 * [len('reference')]


@needs('operators')
@pytest.mark.parametrize(
    ('module', 'attribute', 'value', 'message'),
    [
        (backends, '__version__', 'of tomorrow', 'of bioattn_mm .*, another version than of tomorrow.*pip install'),
        (backends, 'LIBRARY', Path(__file__), r'do not fit torch 2\..* \(.*\): attention runs in PyTorch, slower'),
    ],
)
def test_a_library_that_cannot_be_loaded_is_warned_of(
    module: object, attribute: str, value: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, attribute, value)
    with pytest.warns(UserWarning, match=message) as warned:
        reason = backends._load_library()
    assert reason and str(warned[0].message).startswith(reason)


def test_a_library_for_cuda_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, 'CUDA_LIBRARY', Path(__file__))
    monkeypatch.setattr(backends, 'WHY_NOT_LOADED', None)
    monkeypatch.setattr(torch.version, 'cuda', '13.0')
    assert backends._load_cuda_library().startswith('the operators for CUDA do not fit torch 2.')
    monkeypatch.setattr(torch.version, 'cuda', None)
    assert backends._load_cuda_library().endswith('is built for the CPU alone')
