"""Measures of locality with known answers: uniform and Gaussian attention, gates, constructed attention."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bioattn_mm.analysis import locality
from bioattn_mm.analysis.locality import (
    REGIONS,
    choose_queries,
    distance_of_maps,
    measure_attention,
    measure_model,
    measure_parameters,
    nonlocality,
    position_nonlocality,
    region_means,
)
from bioattn_mm.layers import (
    GPSA,
    AggregatedAttention,
    AttentionMap,
    DistanceEmbedding,
    GaussianRelPosAttention,
    LogCPB,
    PeripheralAttention,
    SoftmaxAttention,
    SparseReconstructionAttention,
)
from bioattn_mm.layers.attention_maps import Recording
from bioattn_mm.models.backbones import Backbone

Grid = tuple[int, int]


def pair_distances(grid: Grid) -> np.ndarray:
    """Between all tokens of a grid: (N, N)."""
    places = np.stack(np.mgrid[: grid[0], : grid[1]], -1).reshape(-1, 2)
    return np.linalg.norm(places[:, None] - places, axis=-1)


def places_of(grid: Grid) -> tuple[Tensor, Tensor]:
    """Rows and columns of all tokens."""
    places = torch.arange(grid[0] * grid[1])
    return places // grid[1], places % grid[1]


def record(layer: nn.Module, x: Tensor, *inputs: nn.Module) -> Recording:
    return Recording('layer', layer, (x, *inputs), {}, tuple(x.shape[1:3]), Backbone(1, (0,)))


def test_nonlocality_of_uniform_attention() -> None:
    grid = (3, 5)
    distances = pair_distances(grid)
    uniform = AttentionMap.of_grid(torch.full((2, 4, 15, 15), 1 / 15), grid)
    values = nonlocality([uniform], *places_of(grid))
    assert values.shape == (4, 15)
    np.testing.assert_allclose(values, np.broadcast_to(distances.mean(1), (4, 15)), rtol=1e-6)
    # Weights that sum to another value than 1 are measured by what they are relative to each other.
    half = AttentionMap.of_grid(torch.full((1, 1, 15, 15), 0.5 / 15), grid)
    np.testing.assert_allclose(nonlocality([half], *places_of(grid))[0], distances.mean(1), rtol=1e-6)


@pytest.mark.parametrize('sigma', [2.0, 5.0])
def test_nonlocality_of_gaussian_attention(sigma: float) -> None:
    """The distance from the mean of a Gaussian in the plane has the mean sigma sqrt(pi / 2)."""
    length = 81
    offset = torch.arange(length, dtype=torch.float64) - length // 2
    weights = torch.exp(-(offset[:, None] ** 2 + offset**2) / (2 * sigma**2))
    attention = AttentionMap.of_grid((weights / weights.sum()).flatten()[None, None, None], (length, length))
    value = nonlocality([attention], torch.tensor([length // 2]), torch.tensor([length // 2]))
    # The sum over tokens in place of the integral.
    assert value.item() == pytest.approx(sigma * math.sqrt(math.pi / 2), rel=0.01)


def test_nonlocality_of_two_parts() -> None:
    """A window of weight 1/4 at a distance of 1, and pooled tokens of weight 3/4 at a distance of 5."""
    window = AttentionMap(
        torch.tensor([[0.125, 0, 0.125]])[None, None, None], torch.tensor([[2]]), torch.tensor([[1, 2, 3]])
    )
    pooled = AttentionMap(torch.full((1, 1, 1, 1, 1), 0.75), torch.tensor([[5.0]]), torch.tensor([[6.0]]))
    assert nonlocality([window, pooled], torch.tensor([2]), torch.tensor([2])).item() == pytest.approx(0.25 + 3.75)


def test_distance_of_one_token_to_uniform_attention() -> None:
    grid, number = (3, 4), 12
    content = torch.zeros(1, 2, number, number)
    content[..., 5] = 1
    uniform = torch.full((1, 2, number, number), 1 / number)
    distance = distance_of_maps(*(AttentionMap.of_grid(weights, grid) for weights in (content, uniform)))
    # One weight is 1 - 1/N away, N - 1 are 1/N away.
    np.testing.assert_allclose(distance, np.full((2, number), math.sqrt(1 - 1 / number)), rtol=1e-6)


def softmax_layer() -> SoftmaxAttention:
    """Attention to all tokens alike."""
    layer = SoftmaxAttention(6, 2)
    nn.init.zeros_(layer.qkv.weight)
    nn.init.zeros_(layer.qkv.bias)
    return layer


@pytest.mark.parametrize('max_numel', [1, 200, 2**28])
def test_measures_do_not_depend_on_chunks(max_numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality, 'MAX_NUMEL', max_numel)
    grid = (4, 5)
    measures = measure_attention(record(softmax_layer(), torch.randn(2, *grid, 6)))
    assert list(measures) == ['nonlocality']
    np.testing.assert_allclose(measures['nonlocality'], [pair_distances(grid).mean()] * 2, rtol=1e-6)


@pytest.mark.parametrize('gate', [0, 1])
def test_closed_and_open_gate(gate: int) -> None:
    layer = GPSA(8, 4)
    layer.gating_param.data.fill_(1e3 if gate else -1e3)
    recording = record(layer, torch.randn(1, 5, 6, 8))
    assert measure_parameters(recording) == dict(gate=[float(gate)] * 4)
    (first, *_) = measure_model([[recording]])
    part, other = ('position', 'content') if gate else ('content', 'position')
    assert first['nonlocality'] == pytest.approx(first[f'nonlocality_{part}'])
    # What is not different from the attention has all of the impact.
    assert first[f'impact_{part}'] > 1e6
    assert first[f'impact_{other}'] < 100


def test_gate_in_between() -> None:
    layer = GPSA(8, 4)
    layer.gating_param.data = torch.tensor([-1.0, 0, 1, math.log(3)])
    gates = measure_parameters(record(layer, torch.randn(1, 2, 2, 8)))['gate']
    assert gates == pytest.approx([1 / (1 + math.e), 0.5, math.e / (1 + math.e), 0.75])


def constructed(grid: Grid, values_of_distance) -> list[tuple[Tensor, AttentionMap]]:
    """Position-based attention that is a function of the distance, in two chunks of queries."""
    phi = torch.from_numpy(values_of_distance(pair_distances(grid)))[None, None]
    places = torch.arange(phi.shape[2])
    return [(p, AttentionMap.of_grid(w, grid)) for p, w in zip(places.split(7), phi.split(7, 2))]


@pytest.mark.parametrize('index', range(4))
@pytest.mark.parametrize('grid', [(9, 12), (6, 6)], ids=str)
def test_region_of_a_ring(grid: Grid, index: int) -> None:
    """A head that attends to one ring, with 0.9 there and 0.2 elsewhere."""
    width = math.hypot(grid[0] - 1, grid[1] - 1) / 4

    def ring(distance: np.ndarray) -> np.ndarray:
        return np.where(np.minimum(distance // width, 3) == index, 0.9, 0.2)

    means = region_means(constructed(grid, ring))
    np.testing.assert_allclose(means, [[0.9 if region == index else 0.2 for region in range(4)]])


def test_nonlocality_of_constant_position_attention() -> None:
    grid = (6, 9)
    reach = position_nonlocality(constructed(grid, lambda distance: np.full_like(distance, 0.25)))
    np.testing.assert_allclose(reach, [0.25 * 2 / 13 * pair_distances(grid).mean()])


def test_parameters_of_peripheral_attention() -> None:
    layer, embedding = PeripheralAttention(8, 2).eval(), DistanceEmbedding(2)
    nn.init.constant_(embedding.proj.weight, -0.02)
    layer.position.init_as_local(norm_weight=3, norm_bias=-5)
    parameters = measure_parameters(record(layer, torch.randn(1, 8, 8, 8), embedding))
    assert parameters['region'] == ['central'] * 2
    # It falls with the distance.
    for head in range(2):
        means = [parameters[f'mean_{region}'][head] for region in REGIONS]
        assert means == sorted(means, reverse=True) and means[0] > 2 * means[1]
    layer.position.norm2.weight.data.neg_()
    rising = measure_parameters(record(layer, torch.randn(1, 8, 8, 8), embedding))
    assert set(rising['region']) <= {'mid-peripheral', 'far-peripheral'}
    assert rising['position_nonlocality_release'][0] > parameters['position_nonlocality_release'][0] > 0


def test_parameters_of_the_gaussian() -> None:
    layer = GaussianRelPosAttention(8, 2, sigma=3.5, amplitude=1.25)
    rows = measure_model([[record(layer.eval(), torch.randn(1, 3, 4, 8))]])
    assert [(row['head'], row['gaussian_amplitude'], row['gaussian_sigma']) for row in rows] == [
        (0, 1.25, 3.5),
        (1, 1.25, 3.5),
    ]
    assert {'nonlocality_Gaussian', 'nonlocality_content', 'impact_position'} <= set(rows[0])


@pytest.mark.parametrize('bias', [-1e4, 1e4])
def test_share_of_the_pooled_tokens(bias: float) -> None:
    layer = AggregatedAttention(8, 2, LogCPB(2, (4, 4)), sr_ratio=2).eval()
    layer.window_bias.data.fill_(bias)
    measures = measure_attention(record(layer, torch.randn(1, 6, 4, 8)))
    assert measures['pooled_share'].tolist() == pytest.approx([float(bias < 0)] * 2, abs=1e-6)
    # In a window of 3 x 3, weights are at distances of 0, 1 and sqrt(2).
    assert (measures['nonlocality'] > 1.2).all() if bias < 0 else (measures['nonlocality'] < math.sqrt(2)).all()


def test_steps_of_the_recurrence() -> None:
    layer = SparseReconstructionAttention(8, 2, num_steps=2)
    measures = measure_attention(record(layer, torch.randn(1, 3, 5, 8)))
    assert list(measures) == ['nonlocality', 'nonlocality_step_0', 'nonlocality_step_1']
    assert all(0 < value < math.hypot(2, 4) for values in measures.values() for value in values.tolist())


def test_queries_are_spread_over_the_grid() -> None:
    recording = record(softmax_layer(), torch.randn(1, 4, 6, 6))
    assert choose_queries(recording, None).tolist() == list(range(24)) == choose_queries(recording, 100).tolist()
    assert choose_queries(recording, 4).tolist() == [3, 9, 15, 21]
    recording = record(SparseReconstructionAttention(6, 2), torch.randn(1, 8, 8, 6))
    assert len(choose_queries(recording, None)) == 32
    distances = pair_distances((4, 6))[[3, 9, 15, 21]]
    measures = measure_attention(record(softmax_layer(), torch.randn(1, 4, 6, 6)), 4)
    np.testing.assert_allclose(measures['nonlocality'], [distances.mean()] * 2, rtol=1e-6)


def test_mean_over_images_of_different_sizes() -> None:
    grids = [(2, 6), (4, 3)]
    rows = measure_model([record(softmax_layer(), torch.randn(1, *grid, 6))] for grid in grids)
    assert [(row['layer'], row['name'], row['head'], row['height'], row['width']) for row in rows] == [
        (0, 'layer', 0, 2, 6),
        (0, 'layer', 1, 2, 6),
    ]
    wanted = np.mean([pair_distances(grid).mean() for grid in grids])
    assert [row['nonlocality'] for row in rows] == pytest.approx([wanted] * 2)
