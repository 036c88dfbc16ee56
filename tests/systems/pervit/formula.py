"""Position-based attention of PerViT, computed for all pairs of tokens."""

import torch
import torch.nn.functional as F

from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention

Grid = tuple[int, int]
GRIDS = [(4, 4), (3, 7), (5, 2), (1, 6), (1, 1)]


def phi_p_of_all_pairs(layer: PeripheralAttention, embedding: DistanceEmbedding, grid: Grid) -> torch.Tensor:
    """Eq. 6-8, computed for all pairs of tokens: (heads, N, N)."""
    position = layer.position
    # In the pre-training, 14 tokens cover [-1, 1].
    step = torch.linspace(-1, 1, 14, dtype=torch.float64).diff()[0]
    queries = torch.cartesian_prod(*(torch.arange(length) for length in grid)) * step
    keys = torch.cartesian_prod(*(torch.arange(-2, length + 2) for length in grid)) * step
    distance = (queries[:, None] - keys).square().sum(-1).sqrt()
    x = F.linear(distance[..., None], embedding.proj.weight, embedding.proj.bias)
    x = x.transpose(1, 2).unflatten(2, (grid[0] + 4, grid[1] + 4))

    def instance_norm(x: torch.Tensor, norm: torch.nn.GroupNorm) -> torch.Tensor:
        mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), correction=0, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]

    x = F.conv2d(x, position.conv1.weight, position.conv1.bias)
    x = F.relu(instance_norm(x, position.norm1))
    x = F.conv2d(x, position.conv2.weight, position.conv2.bias)
    return torch.sigmoid(instance_norm(x, position.norm2)).flatten(2).transpose(0, 1)
