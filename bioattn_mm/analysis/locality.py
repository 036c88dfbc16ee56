"""How far attention reaches and what it is composed of, for each layer and head."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor

from ..systems.common.attention_maps import AttentionMap, Recording, whole_attention

# Parts of the visual field, from the query outwards, and the distance in tokens at which each ends (PerViT, footnote
# 6). Tokens further away than the last belong to none.
REGIONS = {'central': 1.19, 'para-central': 3.37, 'mid-peripheral': 5.83, 'far-peripheral': 7.9}
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
        rows, columns: Places of the queries, int64 (queries,).

    Returns:
        Distances in tokens, averaged over the images: float64 (heads, queries).
    """
    weighted, total = 0, 0
    for part in maps:
        weights = part.weights.abs().double()
        weighted = weighted + (weights * part.distances(rows, columns)).sum((-2, -1))
        total = total + weights.sum((-2, -1))
    return (weighted / total).mean(0)


def region_sums(chunks: Iterable[tuple[Tensor, AttentionMap]]) -> Tensor:
    """Position-based attention of each head in each of the `REGIONS`, summed over all pairs: float64 (heads, 4).

    PerViT (Min et al., NeurIPS 2022), eq. 11: a head belongs to the region with the largest sum. `chunks` are what
    `PeripheralAttention.position_attention` returned.
    """
    sums = 0
    for queries, phi in chunks:
        width = phi.weights.shape[-1]
        distances = phi.distances(queries // width, queries % width).double()
        limits = torch.tensor([0, *REGIONS.values()], dtype=distances.dtype, device=distances.device)
        member = torch.stack([(near <= distances) & (distances < far) for near, far in pairwise(limits)]).double()
        sums = sums + torch.einsum('nqrc,kqrc->nk', phi.weights[0].double(), member)
    return sums


def sparsity(codes: Tensor) -> Tensor:
    """Hoyer's sparsity of the codes of VARS, `(sqrt(n) - |u|_1 / |u|_2) / (sqrt(n) - 1)`: 0 if all n are alike, 1 if
    one alone is not 0.

    Codes, (B, heads, n), to float64 (heads,), averaged over the images; NaN if all codes are 0. It needs no limit
    below which a code counts as 0; those of the release's smooth threshold never are.
    """
    root, codes = codes.shape[-1] ** 0.5, codes.double()
    return ((root - codes.abs().sum(-1) / codes.norm(dim=-1)) / (root - 1)).mean(0)


def choose_queries(recording: Recording, number: int | None) -> Tensor:
    """Return the indices of `number` tokens, evenly spread over the layer's grid, int64.

    None takes all tokens, or `DERIVATIVE_QUERIES` of them in a layer of VARS.
    """
    num_tokens = recording.grid[0] * recording.grid[1]
    if number is None:
        number = DERIVATIVE_QUERIES if hasattr(recording.layer, 'reconstruction_norms') else num_tokens
    # The middle of each of `number` equal parts of the sequence.
    places = (torch.arange(min(number, num_tokens)) + 0.5) * (num_tokens / min(number, num_tokens))
    return places.long().to(recording.tokens.device)


def measure_attention(recording: Recording, num_queries: int | None = None) -> dict[str, Tensor]:
    """Measure the attention of a layer to its input, averaged over the queries of `choose_queries` and the images.

    Queries are taken in chunks, so that no tensor of all pairs of tokens is made.

    Returns:
        Measures by name, float64 (heads,) each, NaN if all weights are 0, which VARS can give:

        - `nonlocality`, in tokens, and `nonlocality_PART` of each part that the weights are composed of;
        - `pooled_share` of aggregated attention, the sum of the weights of the pooled tokens;
        - `sparsity` of the codes of VARS after the last step, and `active_codes`, the share of those that are not 0;
        - `impact_content` and `impact_position`, the inverse of a part's distance to the whole attention, the
          Frobenius norm of the difference of the two N x N matrices (PerViT, eq. 12), where PerViT's are not
          normalised; of some queries alone it is estimated as if the others were like them;
        - `omega_content`, `omega_position` and `omega_attention` of PerViT, its nonlocality (PerViT, eq. 13),
          `1/N^2 sum_ij Phi_ij |delta_ij|`, in tokens.
    """
    chosen = choose_queries(recording, num_queries)
    num_tokens = recording.grid[0] * recording.grid[1]
    sums = defaultdict(float)
    for queries in chosen.split(max(1, MAX_NUMEL // recording.tokens.numel())):
        maps = recording.maps(queries)
        places = queries // recording.grid[1], queries % recording.grid[1]
        measures = dict(nonlocality=nonlocality(whole_attention(maps), *places))
        if 'pooled' in maps:
            measures['pooled_share'] = maps['pooled'].weights.double().sum((-2, -1)).mean(0)
        else:
            for name in list(maps)[:-1]:
                measures[f'nonlocality_{name.replace(" ", "_")}'] = nonlocality([maps[name]], *places)
        if 'position' in maps:
            parts = maps
            if hasattr(recording.layer, 'unnormalised_maps'):
                parts = recording.layer.unnormalised_maps(*recording.inputs, queries)
                for name, part in parts.items():
                    products = part.weights.double() * part.distances(*places)
                    measures[f'omega_{name}'] = products.mean((-2, -1)).mean(0)
            for name in ('content', 'position'):
                difference = parts[name].weights.double() - parts['attention'].weights.double()
                measures[f'impact_{name}'] = difference.square().sum((-2, -1))
        for name, values in measures.items():
            sums[name] = sums[name] + values.sum(-1)
    num_heads = len(sums['nonlocality'])
    means = {name: total / len(chosen) for name, total in sums.items()}
    for name in ('impact_content', 'impact_position'):
        if name in means:
            means[name] = (num_tokens * means[name]).rsqrt().mean(0)
    if hasattr(recording.layer, 'recurrent_states'):
        codes = recording.layer.recurrent_states(*recording.inputs)[1][-1]
        # VARS-S counts as a layer of one head.
        codes = codes.reshape(len(codes), num_heads, -1)
        means['sparsity'], means['active_codes'] = sparsity(codes), (codes != 0).double().mean((0, 2))
    return {name: values.expand(num_heads) for name, values in means.items()}


@torch.no_grad()
def measure_parameters(recording: Recording) -> dict[str, list]:
    """`Recording.head_parameters`, and of position-based attention (PerViT), on the grid of the input, `region` (see
    `region_sums`) and the share of each of the REGIONS in the sum of all four (`share_REGION`).
    """
    parameters = recording.head_parameters()
    if hasattr(recording.layer, 'position_attention'):
        sums = region_sums(recording.layer.position_attention(recording.grid, recording.inputs[1]))
        shares = sums / sums.sum(1, keepdim=True)
        parameters.update(
            region=[list(REGIONS)[index] for index in sums.argmax(1).tolist()],
            **{f'share_{region}': column for region, column in zip(REGIONS, shares.T.tolist())},
        )
    return parameters


def measure_model(recordings: Iterable[list[Recording]], num_queries: int | None = None) -> list[dict]:
    """Measures of every head of a model, averaged over images, of each of which `recordings` has the layers.

    Returns:
        For each layer and head a dict of `layer` (number), `name` (of the module), `head`, the token grid of the
        first image (`height`, `width`), and the measures of `measure_attention` and `measure_parameters`.
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
        for head in range(len(measures['nonlocality'])):
            row = dict(layer=index, name=name, head=head, height=height, width=width)
            row |= {key: values[head].item() for key, values in measures.items()}
            # A parameter that all heads share is listed once.
            row |= {key: values[min(head, len(values) - 1)] for key, values in parameters.items()}
            rows.append(row)
    return rows
