"""A plain backbone whose attention prefers near tokens."""

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from bioattn_mm.checkpoints import Release
from bioattn_mm.registry import MODELS
from bioattn_mm.systems.common.attention_maps import AttentionMap, AttentionMaps
from bioattn_mm.systems.common.backbone import PlainBackbone
from bioattn_mm.systems.common.blocks import Block, init_linear, patch_embedding

PATCH_SIZE = 16


class NearAttention(nn.Module):
    """Multi-head attention whose logits fall with the squared distance of query and key, at a learned rate per head.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Attention heads.
    """

    def __init__(self, embed_dims: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims)
        self.slope = nn.Parameter(torch.linspace(0.01, 0.1, num_heads))
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to the same shape."""
        query, key, value, bias = self._parts(x)
        output = F.scaled_dot_product_attention(query, key, value, bias)
        return self.proj(output.transpose(1, 2).reshape(x.shape))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries, for analysis.

        Args:
            x: (B, H, W, C).
            queries: Their indices in the row-major order of the grid, int64 (queries,).
        """
        query, key, _, bias = self._parts(x)
        weights = (query[:, :, queries] @ key.mT * query.shape[-1] ** -0.5 + bias[:, queries]).softmax(-1)
        return dict(attention=AttentionMap.of_grid(weights, tuple(x.shape[1:3])))

    def head_parameters(self) -> dict[str, list[float]]:
        """The slope of each head."""
        return dict(slope=self.slope.tolist())

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(B, H, W, C) to queries, keys and values, (B, heads, H * W, d), and the bias, (heads, H * W, H * W)."""
        query, key, value = self.qkv(x).flatten(1, 2).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        rows, columns = (torch.arange(length, device=x.device, dtype=x.dtype) for length in x.shape[1:3])
        place = torch.stack(torch.meshgrid(rows, columns, indexing='ij'), -1).flatten(0, 1)
        distance = (place[:, None] - place).square().sum(-1)
        return query, key, value, -self.slope[:, None, None] * distance


@MODELS.register_module()
class ToyViT(PlainBackbone):
    """Plain backbone of stride 16 with `NearAttention`.

    Args:
        arch: 'tiny', or a dict with `embed_dims`, `num_layers` and `num_heads`.
        out_indices: Blocks (counted from 0) whose outputs are returned; the others are arguments of all backbones.
    """

    arch_settings = dict(tiny=dict(embed_dims=24, num_layers=4, num_heads=2))
    # The release counts blocks from 1 and keeps the rates as logarithms.
    release = Release(
        names=(
            (r'^embed\.', 'patch_embed.proj.'),
            (r'^layer(\d+)\.', lambda m: f'blocks.{int(m[1]) - 1}.'),
            (r'\.log_slope$', '.slope'),
        ),
        values={r'\.log_slope$': torch.exp},
    )

    def __init__(
        self,
        arch: str | dict = 'tiny',
        out_indices: tuple[int, ...] = (0, 1, 2, 3),
        drop_path_rate: float = 0.0,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list | None = None,
    ) -> None:
        settings = self.parse_arch(arch)
        embed_dims = settings['embed_dims']
        super().__init__(settings['num_layers'], out_indices, frozen_stages, with_cp, init_cfg)
        self.set_stages((embed_dims,) * self.num_layers, (PATCH_SIZE,) * self.num_layers)
        self.patch_embed = patch_embedding(embed_dims, PATCH_SIZE)
        self.blocks = nn.ModuleList(
            Block(embed_dims, NearAttention(embed_dims, settings['num_heads']), Mlp(embed_dims, 2 * embed_dims), rate)
            for rate in self.drop_path_rates(drop_path_rate)
        )
        self.norm = self.final_norm(embed_dims)
        self.apply(init_linear)
        self.train(self.training)

    def embed(self, x: Tensor) -> Tensor:
        return self.patch_embed(x)
