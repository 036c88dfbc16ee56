"""Measures of locality with known answers: uniform and Gaussian attention, gates, constructed attention."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bioattn_mm.analysis import locality
from bioattn_mm.analysis.locality import REGIONS, choose_queries, measure_attention, measure_model, measure_parameters
from bioattn_mm.systems.common.attention_maps import AttentionMap, Recording
from bioattn_mm.systems.common.backbone import Backbone
from bioattn_mm.systems.common.blocks import SoftmaxAttention
from bioattn_mm.systems.convit import GPSA
from bioattn_mm.systems.gab import GaussianRelPosAttention
from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention
from bioattn_mm.systems.transnext import AggregatedAttention, LogCPB
from bioattn_mm.systems.vars import ConvolutionalSparseReconstruction, SparseReconstructionAttention

Grid = tuple[int, int]


def pair_distances(grid: Grid) -> np.ndarray:
    """Between all tokens of a grid: (N, N)."""
    places = np.stack(np.mgrid[: grid[0], : grid[1]], -1).reshape(-1, 2)
    return np.linalg.norm(places[:, None] - places, axis=-1)


def record(layer: nn.Module, x: Tensor, *inputs: nn.Module) -> Recording:
    return Recording('layer', layer, (x, *inputs), {}, tuple(x.shape[1:3]), Backbone(1, (0,)))


def test_nonlocality_of_two_parts() -> None:
    """A window of weight 1/8 at a distance of 1, and pooled tokens of weight 3/8 at a distance of 5.

    Weights that sum to another value than 1 are measured by what they are relative to each other.
    """
    window = AttentionMap(
        torch.tensor([[0.0625, 0, 0.0625]])[None, None, None], torch.tensor([[2]]), torch.tensor([[1, 2, 3]])
    )
    pooled = AttentionMap(torch.full((1, 1, 1, 1, 1), 0.375), torch.tensor([[5.0]]), torch.tensor([[6.0]]))
    distance = locality.nonlocality([window, pooled], torch.tensor([2]), torch.tensor([2]))
    assert distance.item() == pytest.approx(0.25 + 3.75)


@pytest.mark.parametrize('max_numel', [1, 200, 2**28])
def test_mean_over_images_of_different_sizes(max_numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of attention to all tokens alike, whatever the chunks."""
    monkeypatch.setattr(locality, 'MAX_NUMEL', max_numel)
    layer, grids = SoftmaxAttention(6, 2), [(2, 6), (4, 3)]
    nn.init.zeros_(layer.qkv.weight)
    nn.init.zeros_(layer.qkv.bias)
    rows = measure_model([record(layer, torch.randn(2, *grid, 6))] for grid in grids)
    wanted = np.mean([pair_distances(grid).mean() for grid in grids])
    for head, row in enumerate(rows):
        assert row.pop('nonlocality') == pytest.approx(wanted)
        assert row == dict(layer=0, name='layer', head=head, height=2, width=6)
    assert len(rows) == 2


@pytest.mark.parametrize('num_queries', [None, 30])
@torch.no_grad()
def test_impact_and_nonlocality_of_pervit(num_queries: int | None) -> None:
    """Eq. 12 and 13 against whole matrices that are not normalised, of two images; a third of the rows is scaled."""
    layer, x, grid = PeripheralAttention(8, 2).eval(), torch.randn(2, 9, 10, 8), (9, 10)
    layer.qkv.weight.data.mul_(5)
    embedding = DistanceEmbedding(2)
    recording = record(layer, x, embedding)
    queries = choose_queries(recording, num_queries)
    measures = measure_attention(recording, num_queries)
    query, key, _ = (part.double() for part in layer.qkv(x).flatten(1, 2).unflatten(-1, (3, 2, 4)).unbind(2))
    content = torch.einsum('bqnd,bknd->bnqk', query, key).mul(0.5).exp()
    position = torch.cat([part.weights for _, part in layer.position_attention(grid, embedding)], 2)
    position = position.double().flatten(3)
    distances = torch.from_numpy(pair_distances(grid)).flatten(1)
    phi = dict(content=content, position=position.expand_as(content), attention=content * position)
    for name, weights in phi.items():
        omega = (weights * distances)[:, :, queries].mean((2, 3)).mean(0)
        np.testing.assert_allclose(measures[f'omega_{name}'], omega, rtol=1e-5)
    for name in ('content', 'position'):
        difference = (phi[name] - phi['attention'])[:, :, queries].flatten(2).norm(dim=-1)
        impact = 1 / (difference * math.sqrt(90 / len(queries)))
        np.testing.assert_allclose(measures[f'impact_{name}'], impact.mean(0), rtol=1e-5)


def test_impact_is_the_inverse_frobenius_norm() -> None:
    """Of parts whose rows sum to 1, against the matrices, of which a third of the rows is scaled."""
    recording = record(GPSA(8, 2), torch.randn(2, 9, 10, 8))
    maps = {name: part.weights.double() for name, part in recording.maps(choose_queries(recording, 30)).items()}
    measures = measure_attention(recording, 30)
    for name in ('content', 'position'):
        rows = (maps[name] - maps['attention']).flatten(2).norm(dim=-1) * math.sqrt(90 / 30)
        np.testing.assert_allclose(measures[f'impact_{name}'], (1 / rows).mean(0))
    assert not [name for name in measures if name.startswith('omega')]


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


@pytest.mark.parametrize('region', [*REGIONS, 'none, further out'])
@pytest.mark.parametrize('grid', [(14, 14), (12, 17)], ids=str)
def test_region_of_an_ideal_head(grid: Grid, region: str) -> None:
    """A head that attends to one region alone: its sum is the number of pairs in the region."""
    limits = dict(zip([*REGIONS, 'none, further out'], pairwise([0, 1.19, 3.37, 5.83, 7.9, math.inf])))
    near, far = limits[region]
    distances = pair_distances(grid)
    phi = ((near <= distances) & (distances < far)).astype(float)
    maps = (AttentionMap.of_grid(part, grid) for part in torch.from_numpy(phi)[None, None].split(7, 2))
    (sums,) = locality.region_sums(zip(torch.arange(len(phi)).split(7), maps))  # in chunks of queries
    assert sums.tolist() == [phi.sum() * (other == region) for other in REGIONS]


def test_region_and_shares_of_a_layer() -> None:
    recording = record(PeripheralAttention(8, 2), torch.zeros(1, 14, 14, 8), DistanceEmbedding(2))
    parameters = measure_parameters(recording)
    for head, region in enumerate(parameters['region']):
        shares = {each: parameters[f'share_{each}'][head] for each in REGIONS}
        assert sum(shares.values()) == pytest.approx(1) and max(shares, key=shares.get) == region


def test_parameters_of_the_gaussian() -> None:
    layer = GaussianRelPosAttention(8, 2, sigma=3.5, amplitude=1.25)
    rows = measure_model([[record(layer.eval(), torch.randn(1, 3, 4, 8))]])
    names = ('head', 'gaussian_amplitude', 'gaussian_sigma')
    assert [tuple(row[name] for name in names) for row in rows] == [(0, 1.25, 3.5), (1, 1.25, 3.5)]
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
    assert measures.pop('active_codes').tolist() == [1, 1]  # of the smooth threshold
    assert list(measures) == ['nonlocality', 'nonlocality_step_0', 'nonlocality_step_1', 'sparsity']
    assert (0 < measures['sparsity']).all() and (measures.pop('sparsity') < 1).all()
    assert all(0 < value < math.hypot(2, 4) for values in measures.values() for value in values.tolist())


def test_sparsity() -> None:
    codes = torch.tensor([[[0, -3.0, 0, 0], [2, -2, 2, 2], [1, 1, 0, 0]]])
    np.testing.assert_allclose(locality.sparsity(codes), [1, 0, 2 - math.sqrt(2)])


@pytest.mark.parametrize(
    'make',
    [
        partial(SparseReconstructionAttention, 8, 2, threshold='soft'),
        partial(ConvolutionalSparseReconstruction, 8, (4, 5)),
    ],
    ids=['linear', 'convolutional'],
)
def test_a_higher_penalty_makes_codes_sparser(make: Callable[..., nn.Module]) -> None:
    x, found = torch.randn(2, 4, 5, 8), []
    for penalty in (0.0, 0.3, 1.0):
        torch.manual_seed(0)
        measures = measure_attention(record(make(sparsity=penalty).eval(), x))
        found.append((measures['sparsity'].mean().item(), -measures['active_codes'].mean().item()))
    for values in zip(*found):
        assert list(values) == sorted(values) and values[0] < values[2]


def test_queries_are_spread_over_the_grid() -> None:
    recording = record(SoftmaxAttention(6, 2), torch.randn(1, 4, 6, 6))
    assert choose_queries(recording, None).tolist() == list(range(24)) == choose_queries(recording, 100).tolist()
    assert choose_queries(recording, 4).tolist() == [3, 9, 15, 21]
    recording = record(SparseReconstructionAttention(6, 2), torch.randn(1, 8, 8, 6))
    assert len(choose_queries(recording, None)) == 32
