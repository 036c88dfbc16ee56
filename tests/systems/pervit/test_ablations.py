"""What PerViT's ablations compare with (tables 1 and 5), against formulas over all pairs of tokens."""

import pytest
import torch
from torch import nn

from bioattn_mm.ops import chunked_attention
from bioattn_mm.systems.pervit import ContentAttention, PositionAttention, VectorDistance
from tests.systems.layers import randomized

from .formula import CHANNELS, GRIDS, HEADS, POSITIONS, attend, check, embedding_of, layer_of, phi_c, phi_p, tokens


@pytest.mark.parametrize('distance', ['Euclidean', 'of learned vectors'])
@pytest.mark.parametrize('grid', GRIDS)
@pytest.mark.parametrize('position', list(POSITIONS)[1:])
@pytest.mark.parametrize('rows', ['all rows', 'row by row'])
def test_position_is_the_formula_written_out(
    grid: tuple[int, int], position: str, rows: str, distance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rows == 'row by row':
        monkeypatch.setattr(chunked_attention, 'MAX_WEIGHTS_PER_CHUNK', 1)
    check(layer_of(position), tokens(grid), embedding_of(grid if 'vectors' in distance else None))


@pytest.mark.parametrize('grid', GRIDS)
def test_position_alone(grid: tuple[int, int]) -> None:
    layer, embedding, x = randomized(PositionAttention(CHANNELS, HEADS)), embedding_of(), tokens(grid)
    weights = phi_p(layer.position, embedding, grid)
    check(layer, x, embedding, attend(weights, layer.v(x), layer))
    maps = layer.attention_maps(x, embedding, torch.tensor([0]))
    torch.testing.assert_close(maps['content'].weights, torch.full_like(maps['content'].weights, 1 / len(weights[0])))
    torch.testing.assert_close(maps['attention'].weights, maps['position'].weights.expand(3, -1, -1, -1, -1))


def test_content_alone() -> None:
    layer, x = randomized(ContentAttention(CHANNELS, HEADS)), tokens((3, 5))
    content, value = phi_c(layer, x)
    check(layer, x, nn.Identity(), attend(content, value, layer))
    maps = layer.attention_maps(x, nn.Identity(), torch.arange(15))
    torch.testing.assert_close(maps['attention'].weights.flatten(-2), content / content.sum(-1, keepdim=True))


@torch.no_grad()
def test_learned_vectors_on_other_grids() -> None:
    embedding = VectorDistance(HEADS)
    assert embedding.vectors.shape == (18, 18, 4 * HEADS)  # of 14 x 14 tokens, two more on every side
    assert embedding.vectors.std() == pytest.approx(0.02, rel=0.05)
    # Vectors that grow evenly with the place do so on any grid.
    embedding.vectors.copy_(torch.linspace(-1, 1, 18)[:, None, None].expand_as(embedding.vectors))
    for height, width in [(28, 14), (7, 20), (1, 1)]:
        keys, queries = embedding((height, width))
        assert keys.shape == (4 * HEADS, height + 4, width + 4) and queries.shape == (
            4 * HEADS,
            height,
            width,
        )
        torch.testing.assert_close(keys, -keys.flip(1))
        assert (keys.diff(dim=1)[:, 1:-1] > 0).all()
