"""How far attention reaches and what it is composed of, for each layer and head.

A measure 'after' an equation may differ from the paper's in details; its docstring defines it in full.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from ..layers.attention_maps import AttentionMap, Recording, whole_attention
from ..layers.peripheral_attention import GRID_STEP

# Parts of the human visual field, from the query outwards (PerViT, figure 1).
REGIONS = ('central', 'para-central', 'mid-peripheral', 'far-peripheral')
# Upper limit of (elements of a layer's input) x (queries in a chunk), which bounds the memory of the maps.
MAX_NUMEL = 2**28
# Default number of queries for VARS, whose weights are derivatives through all steps of the recurrence.
DERIVATIVE_QUERIES = 32


def nonlocality(maps: list[AttentionMap], rows: Tensor, columns: Tensor) -> Tensor:
    """Mean distance between queries and keys, weighted by attention: `D = sum_j A_ij |delta_ij| / sum_j A_ij`.

    ConViT (d'Ascoli et al., ICML 2021), eq. 8, is its mean over all queries, for weights that sum to 1. If a class
    token has a part of the weights, the distance is the mean over the other keys. The weights of VARS may be
    negative; their absolute values count.

    Args:
        maps: The attention maps that together are the layer's weights.
        rows: Rows of the queries, int64 (queries,).
        columns: Columns of the queries, int64 (queries,).

    Returns:
        Distances in tokens, averaged over the images: float64 (heads, queries).
    """
    weighted, total = 0, 0
    for part in maps:
        weights = part.weights.abs().double()
        weighted = weighted + (weights * part.distances(rows, columns)).sum((-2, -1))
        total = total + weights.sum((-2, -1))
    return (weighted / total).mean(0)


def distance_of_maps(part: AttentionMap, whole: AttentionMap) -> Tensor:
    """Euclidean distance of two rows of weights, `|A_i - B_i|`, averaged over the images: float64 (heads, queries).

    Its inverse, after averaging over queries and images, is the impact of a part on the whole attention. After PerViT
    (Min et al., NeurIPS 2022), eq. 12, which takes the distance between position-based and mixed attention; here both
    are weights that sum to 1 for each query.
    """
    return (part.weights.double() - whole.weights.double()).flatten(3).norm(dim=-1).mean(0)


def region_means(chunks: Iterable[tuple[Tensor, AttentionMap]]) -> Tensor:
    """Mean position-based attention of each head in each of the `REGIONS`.

    After PerViT, eq. 11: a head belongs to the region with the largest mean. The regions are four rings of equal
    width around the query, from 0 to the largest distance of two tokens of the grid.

    Args:
        chunks: What `PeripheralAttention.position_attention` returned.

    Returns:
        float64 (heads, 4), NaN for a ring without tokens.
    """
    sums, numbers = 0, 0
    for places, phi in chunks:
        distances = _distances(phi, places)
        height, width = phi.weights.shape[-2:]
        largest = max((height - 1) ** 2 + (width - 1) ** 2, 1) ** 0.5
        ring = (len(REGIONS) * distances / largest).long().clamp(max=len(REGIONS) - 1)
        member = torch.stack([ring == index for index in range(len(REGIONS))]).double()
        sums = sums + torch.einsum('nqrc,kqrc->nk', phi.weights[0].double(), member)
        numbers = numbers + member.sum((1, 2, 3))
    return sums / numbers


def position_nonlocality(chunks: Iterable[tuple[Tensor, AttentionMap]]) -> Tensor:
    """Nonlocality of PerViT's position-based attention without normalisation, `1/N^2 sum_ij Phi_ij |delta_ij|`.

    PerViT, eq. 13, as in the authors' release: a mean over all N^2 pairs of tokens, in units in which the 14 x 14
    tokens of the pre-training lie on [-1, 1].

    Args:
        chunks: What `PeripheralAttention.position_attention` returned.

    Returns:
        float64 (heads,).
    """
    total, number = 0, 0
    for places, phi in chunks:
        distances = GRID_STEP * _distances(phi, places)
        total = total + (phi.weights[0].double() * distances).sum((1, 2, 3))
        number += distances.numel()
    return total / number


def choose_queries(recording: Recording, number: int | None) -> Tensor:
    """Return the indices of `number` tokens, evenly spread over the layer's grid, int64.

    None takes all tokens, or `DERIVATIVE_QUERIES` of them in a layer of VARS.
    """
    num_tokens = recording.grid[0] * recording.grid[1]
    if number is None:
        number = DERIVATIVE_QUERIES if hasattr(recording.layer, 'reconstruction_norms') else num_tokens
    # The middle of each of `number` equal parts of the sequence.
    places = (torch.arange(min(number, num_tokens)) + 0.5) * (num_tokens / min(number, num_tokens))
    return places.long().to(recording.inputs[0].device)


def measure_attention(recording: Recording, num_queries: int | None = None) -> dict[str, Tensor]:
    """Measure the attention of a layer to its input, averaged over queries and the images of the input.

    Queries are taken in chunks, so that no tensor of all pairs of tokens is made.

    Args:
        recording: Of the layer.
        num_queries: See `choose_queries`.

    Returns:
        Measures by name, float64 (heads,) each: `nonlocality`, in tokens; `nonlocality_PART` of each part that the
        weights are composed of (content, position, steps); for content and position also `distance_content` and
        `distance_position`, see `distance_of_maps`; for aggregated attention `pooled_share`, the sum of the weights
        of the pooled tokens. NaN if all weights are 0, which VARS can give.
    """
    chosen = choose_queries(recording, num_queries)
    sums = defaultdict(float)
    for queries in chosen.split(max(1, MAX_NUMEL // recording.inputs[0].numel())):
        maps = recording.maps(queries)
        places = queries // recording.grid[1], queries % recording.grid[1]
        whole = whole_attention(maps)
        measures = dict(nonlocality=nonlocality(whole, *places))
        if 'pooled' in maps:
            measures['pooled_share'] = maps['pooled'].weights.double().sum((-2, -1)).mean(0)
        else:
            for name in list(maps)[:-1]:
                measures[f'nonlocality_{name.replace(" ", "_")}'] = nonlocality([maps[name]], *places)
        if 'position' in maps:
            for name in ('content', 'position'):
                measures[f'distance_{name}'] = distance_of_maps(maps[name], maps['attention'])
        for name, values in measures.items():
            sums[name] = sums[name] + values.sum(-1)
    num_heads = len(sums['nonlocality'])
    return {name: (total / len(chosen)).expand(num_heads) for name, total in sums.items()}


@torch.no_grad()
def measure_parameters(recording: Recording) -> dict[str, list]:
    """What a layer's parameters say about its locality, independent of the image: lists by name, a value per head.

    The backbone's `head_parameters` of the layer. Where a layer has a position-based attention (PerViT), also
    `region`, the one of the REGIONS with the largest mean, these means (`mean_REGION`), and
    `position_nonlocality_release`, on the grid of the input.
    """
    layer = recording.layer
    parameters = recording.backbone.head_parameters(layer)
    if hasattr(layer, 'position_attention'):
        embedding = recording.inputs[1]
        means = region_means(layer.position_attention(recording.grid, embedding))
        reach = position_nonlocality(layer.position_attention(recording.grid, embedding))
        parameters.update(
            region=[REGIONS[index] for index in means.nan_to_num(-1).argmax(1).tolist()],
            **{f'mean_{region}': column for region, column in zip(REGIONS, means.T.tolist())},
            position_nonlocality_release=reach.tolist(),
        )
    return parameters


def measure_model(recordings: Iterable[list[Recording]], num_queries: int | None = None) -> list[dict]:
    """Measures of every head of a model, averaged over images.

    Args:
        recordings: What `record_attention` returned for each image.
        num_queries: See `choose_queries`.

    Returns:
        For each layer and head a dict of `layer` (number), `name` (of the module), `head`, the token grid of the
        first image (`height`, `width`), and the measures of `measure_attention` and `measure_parameters`, with
        `impact_content` and `impact_position`, the inverse of the distances, in place of these.
    """
    sums, fixed, number = [], [], 0
    for of_image in recordings:
        number += 1
        if not fixed:
            fixed = [(layer.name, layer.grid, measure_parameters(layer)) for layer in of_image]
            sums = [defaultdict(float) for _ in of_image]
        for total, layer in zip(sums, of_image, strict=True):
            for name, values in measure_attention(layer, num_queries).items():
                total[name] = total[name] + values
    rows = []
    for index, (total, (name, (height, width), parameters)) in enumerate(zip(sums, fixed)):
        measures = {key: values / number for key, values in total.items()}
        for part in ('content', 'position'):
            if f'distance_{part}' in measures:
                measures[f'impact_{part}'] = 1 / measures.pop(f'distance_{part}')
        for head in range(len(measures['nonlocality'])):
            row = dict(layer=index, name=name, head=head, height=height, width=width)
            row |= {key: values[head].item() for key, values in measures.items()}
            # What the heads share is there once.
            row |= {key: values[min(head, len(values) - 1)] for key, values in parameters.items()}
            rows.append(row)
    return rows


def _distances(part: AttentionMap, places: Tensor) -> Tensor:
    """Distances of a map of a whole grid: float64 (queries, H, W)."""
    width = part.weights.shape[-1]
    return part.distances(places // width, places % width).double()
