"""What a `SizeCache` keeps of a layer, and where it computes anew."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils import prune

from bioattn_mm.ops.constants import capture_of_constants
from bioattn_mm.systems.common.size_cache import SizeCache


class Scaled(nn.Module):
    """Gives weights times a size, and counts how often it computes that."""

    def __init__(self, **limits: int) -> None:
        super().__init__()
        self.part, self.cache, self.count = nn.Linear(3, 2), SizeCache(**limits), 0
        self.eval()

    def forward(self, size: int = 1, shared: nn.Module | None = None) -> Tensor:
        def compute() -> Tensor:
            self.count += 1
            return size * self.part.weight * (1 if shared is None else shared.weight)

        return self.cache.get(self, size, compute, shared)


@torch.no_grad()
@pytest.mark.parametrize('of_shared', [False, True])
@pytest.mark.parametrize(
    'change',
    [
        lambda part: part.weight.mul_(2),
        lambda part: part.load_state_dict({name: 2 * value for name, value in part.state_dict().items()}),
        lambda part: setattr(part, 'weight', nn.Parameter(part.weight * 2)),
        lambda part: part.double(),
        lambda part: prune.random_unstructured(part, 'weight', 0.5),
    ],
    ids=['in place', 'load_state_dict', 'assignment', 'dtype', 'pruning'],
)
def test_weights_that_change(change: Callable[[nn.Module], object], of_shared: bool) -> None:
    layer, shared = Scaled(), nn.Linear(3, 2)
    assert layer(2, shared) is layer(2, shared) and layer.count == 1
    change(shared if of_shared else layer.part)
    torch.testing.assert_close(layer(2, shared), 2 * layer.part.weight * shared.weight, rtol=0, atol=0)
    assert layer.count == 2


def test_where_nothing_is_kept() -> None:
    for training, context in (
        (False, torch.enable_grad()),
        (True, torch.no_grad()),
        (False, capture_of_constants()),  # in a CUDA graph
        (False, FakeTensorMode(allow_non_fake_inputs=True)),
    ):
        layer = Scaled().train(training)
        with torch.no_grad(), context:
            layer(), layer()
        assert layer.count == 2 and len(layer.cache) == 0


@torch.no_grad()
def test_transforms_compute_what_they_need() -> None:
    layer, one = Scaled(), torch.ones(1)
    torch.func.jvp(lambda x: x * layer().sum(), (one,), (one,))
    weights = {name: torch.stack((value, 2 * value)) for name, value in layer.named_parameters()}
    results = torch.func.vmap(lambda weights: torch.func.functional_call(layer, weights, ()))(weights)
    torch.testing.assert_close(results, weights['part.weight'])
    assert len(layer.cache) == 0


@torch.no_grad()
def test_the_newest_stay_within_the_limits() -> None:
    for limits, sizes, count, kept in (
        (dict(max_sizes=2), (1, 2, 1, 3, 1), 3, 2),
        (dict(max_sizes=2), (1, 2, 1, 3, 1, 2), 4, 2),
        (dict(max_bytes=1), (1, 2, 3, 3), 3, 1),
        (dict(max_bytes=2 * 6 * 4), (1, 2, 3, 3), 3, 2),
    ):
        layer = Scaled(**limits)
        for size in sizes:
            layer(size)
        assert (layer.count, len(layer.cache)) == (count, kept), (limits, sizes)


@torch.no_grad()
def test_a_size_that_another_thread_drops_meanwhile() -> None:
    layer, cache, results = Scaled(), SizeCache(max_sizes=1), []
    result = cache.get(layer, 1, lambda: results.append(cache.get(layer, 2, lambda: 'other')) or 'own')
    assert (result, results, len(cache)) == ('own', ['other'], 1)
    assert cache.get(layer, 1, lambda: 'again') == 'own'


@torch.no_grad()
def test_weights_that_change_meanwhile() -> None:
    layer, cache = Scaled(), SizeCache()
    cache.get(layer, 1, lambda: layer.part.weight.mul_(2) is cache.get(layer, 2, lambda: 'new'))
    assert cache.get(layer, 1, lambda: 'new') == 'new'


@torch.no_grad()
def test_replicas_of_data_parallel_do_not_take_what_is_kept() -> None:
    layer = Scaled()
    replica = layer._replicate_for_data_parallel()
    replica.part = layer.part._replicate_for_data_parallel()
    replica.part.weight = 2 * layer.part.weight
    torch.testing.assert_close(replica(), 2 * layer())


@torch.no_grad()
def test_other_weights_in_the_same_memory() -> None:
    layer = Scaled()
    memory = {name: value.clone() for name, value in layer.named_parameters()}
    for factor in (1, 2):
        weights = {name: torch.from_numpy(values.mul_(factor).numpy()) for name, values in memory.items()}
        result = torch.func.functional_call(layer, weights, ())
        del weights  # before the next ones come, as where a function makes them
    torch.testing.assert_close(result, 2 * layer.part.weight)


@torch.inference_mode()
def test_weights_whose_changes_cannot_be_seen() -> None:
    layer = Scaled()
    before = layer().clone()
    layer.part.weight.add_(1)
    torch.testing.assert_close(layer(), before + 1)


@torch.no_grad()
def test_copies_have_a_cache_of_their_own() -> None:
    layer = Scaled(max_sizes=3, max_bytes=99)
    layer()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert (len(other.cache), other.cache.max_sizes, other.cache.max_bytes) == (0, 3, 99)
