"""Which backend runs, and what is said where the fast one does not."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from bioattn_mm.ops import aggregated_attention, backends
from bioattn_mm.ops.backends import available_backends, capabilities_of, choose_backend
from tests.needs import needs
from tests.ops.inputs import aggregated_attention_inputs

GPU = torch.device('cuda', 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """Pretends that there is a GPU, and operators for some: `gpu(capability=(8, 6), compiled='8.0 9.0')`."""

    def pretend(capability: tuple[int, int], compiled: str, driver: int = 13000) -> None:
        properties = SimpleNamespace(name='Some GPU', major=capability[0], minor=capability[1])
        monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
        monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: properties)
        monkeypatch.setattr(backends, 'WHY_NOT_LOADED', None)
        monkeypatch.setattr(backends, 'CUDA_ARCHITECTURES', compiled)
        monkeypatch.setattr(
            backends, 'WHY_NOT_ON_CUDA', None if compiled else 'the operators were compiled without CUDA'
        )
        monkeypatch.setattr(backends, 'CUDA_CAPABILITIES', capabilities_of(compiled))
        monkeypatch.setattr(backends, 'CUDA_RELEASES', (13000, driver))

    monkeypatch.delenv('BIOATTN_MM_BACKEND', raising=False)
    backends._warn_once.cache_clear()
    yield pretend
    backends._warn_once.cache_clear()


@pytest.mark.parametrize(
    ('compiled', 'capability', 'runs'),
    [
        ('8.0 9.0', (8, 0), True),
        ('8.0 9.0', (8, 9), True),
        ('8.0 9.0', (9, 0), True),
        ('8.0 9.0', (7, 5), False),
        ('8.0 9.0', (12, 0), False),
        ('8.0 9.0+PTX', (12, 0), True),
        ('8.6', (8, 0), False),
        ('8.0+PTX', (7, 5), False),
        ('9.0a', (9, 0), True),
        ('9.0a+PTX', (10, 0), False),
        ('10.0f', (10, 3), True),
        ('10.0f', (12, 0), False),
        ('Hopper', (7, 5), True),  # not known: taken at its word
        ('', (8, 0), False),
    ],
)
def test_compute_capability(gpu, compiled: str, capability: tuple[int, int], runs: bool) -> None:
    gpu(capability, compiled)
    assert available_backends(GPU) == (['cuda', 'reference'] if runs else ['reference'])


def test_a_gpu_without_compiled_operators_is_warned_of_once(gpu) -> None:
    gpu((7, 5), '8.0 9.0')
    with pytest.warns(
        UserWarning, match=r'in PyTorch, slower: .* capability 8.0 9.0, and Some GPU has 7.5; to build'
    ):
        assert choose_backend(GPU, None) == 'reference'
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert choose_backend(GPU, None) == 'reference'
        assert choose_backend(GPU, 'reference') == 'reference'
        gpu((7, 5), '7.5')
        assert choose_backend(GPU, None) == 'cuda'
    gpu((7, 5), '')
    with pytest.warns(UserWarning, match='in PyTorch, slower: the operators were compiled without CUDA; to build'):
        assert choose_backend(GPU, None) == 'reference'


def test_a_driver_older_than_the_operators(gpu) -> None:
    gpu((9, 0), '9.0', driver=12080)
    with pytest.warns(UserWarning, match='slower: .* with CUDA 13.0, and the driver runs CUDA 12.8 at most'):
        assert choose_backend(GPU, None) == 'reference'
    gpu((9, 0), '9.0', driver=13010)
    assert choose_backend(GPU, None) == 'cuda'


def test_arguments_that_the_kernels_do_not_take(gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu((8, 0), '8.0')
    reason = 'aggregated_attention on CUDA takes 8, 16, ... 64 channels a head, got 12'
    with pytest.warns(UserWarning, match=f'in PyTorch, slower: {reason}'):
        assert choose_backend(GPU, None, reason) == 'reference'
    assert choose_backend(GPU, 'reference', reason) == 'reference'
    with pytest.raises(ValueError, match=f"backend 'cuda' cannot run: {reason}; the backend reference can"):
        choose_backend(GPU, 'cuda', reason)
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'cuda')
    with pytest.raises(ValueError, match=f"backend 'cuda' cannot run: {reason}"):
        choose_backend(GPU, None, reason)
    gpu((7, 5), '8.0')
    with pytest.raises(
        ValueError, match="no backend 'cuda' for cuda: expected one of reference; .* has 7.5, to build"
    ):
        choose_backend(GPU, None)


@needs('torch for CUDA')  # also for fake tensors of a GPU
@pytest.mark.parametrize(
    ('sizes', 'dtype', 'reason'),
    [
        (dict(channels=12), torch.float32, 'takes 8, 16, ... 64 channels a head, got 12'),
        (dict(window_size=11), torch.float32, 'takes windows of 3, 5, 7 and 9, got 121 window offsets'),
        (dict(), torch.float64, 'takes float32, float16 and bfloat16, got float64'),
        (dict(), torch.float32, None),
    ],
)
def test_what_the_operator_says_about_its_arguments(
    monkeypatch: pytest.MonkeyPatch, sizes: dict, dtype: torch.dtype, reason: str | None
) -> None:
    monkeypatch.setattr(backends, 'CUDA_ARCHITECTURES', '8.0')
    backends._warn_once.cache_clear()
    arguments = aggregated_attention_inputs(**sizes, dtype=dtype)
    with FakeTensorMode():  # of a GPU that need not be there
        fakes = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, device='cuda') for name, tensor in arguments.items()
        }
        if reason:
            with pytest.raises(ValueError, match=reason):
                aggregated_attention(**fakes, backend='cuda')
            with pytest.warns(UserWarning, match=reason):
                output = aggregated_attention(**fakes)
        else:
            output = aggregated_attention(**fakes, backend='reference')
    assert output.shape == arguments['query'].shape
    assert output.device.type == 'cuda'


def test_the_choice_is_made_while_a_graph_is_compiled() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + len(choose_backend(GPU, None, 'unsupported'))

    compiled = torch.compile(function, fullgraph=True, backend='eager')
    assert compiled(torch.zeros(2)).tolist() == 2 * [len('reference')]


@needs('operators')
def test_library_of_another_version(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backends, '__version__', 'of tomorrow')
    with pytest.warns(UserWarning, match='those of bioattn_mm .*, another version than of tomorrow.*pip install'):
        assert 'another version' in backends._load_library()


def test_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.torch, '__version__', '2.9.1+cpu')
    monkeypatch.setattr(backends, 'LIBRARY', backends.Path(__file__))
    with pytest.warns(UserWarning, match=r'need torch 2\.10 or later, and this is torch 2\.9\.1\+cpu'):
        assert backends._load_library()


def test_libraries_that_torch_cannot_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('LIBRARY', 'CUDA_LIBRARY'):
        monkeypatch.setattr(backends, name, backends.Path(__file__))
    monkeypatch.setattr(backends, 'WHY_NOT_LOADED', None)
    with pytest.warns(UserWarning, match=r'do not fit torch 2\..* \(.*\): attention runs in PyTorch, slower'):
        assert backends._load_library()
    monkeypatch.setattr(torch.version, 'cuda', '13.0')
    assert backends._load_cuda_library().startswith('the operators for CUDA do not fit torch 2.')
    monkeypatch.setattr(torch.version, 'cuda', None)
    assert backends._load_cuda_library().endswith('is built for the CPU alone')
