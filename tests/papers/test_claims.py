"""What the papers say in formulas holds of the layers here, with the formula written out again in a few lines."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from bioattn_mm.analysis.flops import count_multiply_adds
from bioattn_mm.analysis.maps import fit_gaussian
from bioattn_mm.systems.gab import GABViT
from bioattn_mm.systems.gab.vit_attention import GaussianRelPosAttention
from bioattn_mm.systems.transnext import TransNeXt
from bioattn_mm.systems.transnext.attention import ScaledCosineQuery
from bioattn_mm.systems.vars.attention import soft_threshold, sparse_codes
from tests.needs import needs


def entropy(num_keys: int, log_length: float) -> float:
    """The mean entropy in nats of the attention of 64 random queries to random keys of 24 dimensions."""
    generator = torch.Generator().manual_seed(num_keys)
    query, key = (torch.randn(number, 1, 24, generator=generator) for number in (64, num_keys))
    scale = ScaledCosineQuery(num_heads=1, head_dims=24)
    torch.nn.init.zeros_(scale.query_embedding)
    with torch.no_grad():
        weights = (scale(query, log_length)[:, 0] @ (key / key.norm(dim=-1, keepdim=True))[:, 0].T).softmax(-1)
    return torch.special.entr(weights).sum(-1).mean().item()


def test_transnext_length_scaling_keeps_the_entropy() -> None:
    """TransNeXt, eq. 8 and 9: with the factor log N the entropy does not grow with N, with a fixed one it does."""
    lengths = (58, 205, 793, 5000)
    scaled = [entropy(length, math.log(length)) for length in lengths]
    fixed = [entropy(length, math.log(lengths[0])) for length in lengths]
    assert max(scaled) - min(scaled) < 0.4
    assert fixed[-1] - fixed[0] > 3


@needs('operators')
def test_transnext_cost_of_aggregated_attention_and_conv_glu() -> None:
    """TransNeXt, eq. 15 and 16: multiply-adds of a block of Tiny, without position bias."""
    backbone = TransNeXt(arch='tiny', position_bias=dict(type='bioattn_mm.NoPositionBias')).eval()
    counts = count_multiply_adds(backbone, torch.zeros(1, 3, 224, 224))
    for stage, (side, channels, ratio) in enumerate([(56, 72, 8), (28, 144, 8), (14, 288, 4)]):
        tokens, pooled, window = side**2, 7 * 7, 3 * 3
        attention = (5 * tokens + 2 * pooled) * channels**2 + (2 * pooled + 3 * window) * tokens * channels
        conv_glu = 2 * ratio * tokens * channels**2 + 2 * ratio * tokens * channels * 9 // 3
        place = f'stages.{stage}.blocks.0'
        assert (counts[f'{place}.attn'], counts[f'{place}.mlp']) == (attention, conv_glu)


@needs('lmfit')
def test_gab_bias_is_a_gaussian_from_the_start() -> None:
    """GAB, section 4: B_rel + B_Gaussian appears as a Gaussian before any training, B_rel alone does not."""
    r2 = {}
    for amplitude in (0.0, 1.0):
        torch.manual_seed(0)
        bias = GaussianRelPosAttention(384, 6, 5.0, amplitude).eval().rel_pos.get_bias((14, 14))
        field = bias[0].mean(0)[6 * 14 + 6].reshape(14, 14).detach().numpy().astype(np.float64)
        r2[amplitude] = next(iter(fit_gaussian(field, from_minimum=True).values()))
    assert r2[1.0] > 0.98 and r2[0.0] < 0.9


def near_to_far(amplitude: float) -> float:
    """How much more each of the 24 nearest patches contributes to one in the middle than those 6 or more away."""
    torch.manual_seed(0)
    backbone = GABViT(dict(embed_dims=96, num_layers=4, num_heads=3), amplitude=amplitude, out_indices=(3,)).eval()
    for block in backbone.blocks:
        torch.nn.init.ones_(block.ls1.gamma), torch.nn.init.ones_(block.ls2.gamma)
    images = torch.randn(4, 3, 240, 240, requires_grad=True)
    backbone(images)[0][:, :, 7, 7].sum().backward()
    field = images.grad.abs().sum((0, 1)).reshape(15, 16, 15, 16).sum((1, 3))
    y, x = torch.meshgrid(torch.arange(15) - 7, torch.arange(15) - 7, indexing='ij')
    distance = torch.maximum(y.abs(), x.abs())
    return (field[(distance > 0) & (distance <= 2)].mean() / field[distance >= 6].mean()).item()


def test_gab_makes_near_patches_count_more() -> None:
    """GAB, section 4: untrained, a ViT sees near and far patches alike, and with the Gaussian the near ones more."""
    ratios = [near_to_far(amplitude) for amplitude in (0.0, 1.0, 2.0)]
    assert ratios[0] == pytest.approx(1, abs=0.1) and 1.2 < ratios[1] < 2 < ratios[2]


def equilibrium(dictionary: Tensor, x: Tensor, threshold: float) -> Tensor:
    """g(u) where the derivatives of VARS, eq. 8 and 9, are zero, alpha = 1, beta = gamma = 2, by Euler's steps."""
    u, target = torch.zeros(dictionary.shape[1], dtype=x.dtype), dictionary.T @ x
    for _ in range(20000):
        codes = torch.sign(u) * (u.abs() - threshold).clamp(min=0)
        z = dictionary @ codes + x  # where dz/dt is zero
        u = u + 0.05 * (-2 * u - 2 * (dictionary.T @ (dictionary @ codes) - codes) + dictionary.T @ z)
    torch.testing.assert_close(dictionary.T @ z, target + dictionary.T @ (dictionary @ codes))
    return codes


@pytest.mark.parametrize('threshold', [0.15, 0.3], ids=['half of lambda, eq. 10', 'lambda, eq. 22'])
def test_vars_equilibrium_is_the_sparse_reconstruction(threshold: float) -> None:
    """VARS, eq. 8 to 10 with g's threshold of lambda / 2, and eq. 20 to 22 with lambda: both weigh L1 with twice it.

    The recurrence of the layers, run to its end, gives the same codes with `penalty` as that weight.
    """
    generator = torch.Generator().manual_seed(0)
    dictionary = torch.nn.functional.normalize(torch.randn(12, 20, generator=generator, dtype=torch.float64), dim=0)
    x, penalty = torch.randn(12, generator=generator, dtype=torch.float64), 2 * threshold
    codes = equilibrium(dictionary, x, threshold)
    # The minimum of |P u - x|^2 / 2 + penalty |u|_1 by its conditions.
    slope = dictionary.T @ (x - dictionary @ codes)
    active = codes != 0
    assert 3 < active.sum() < 20
    torch.testing.assert_close(slope[active], penalty * codes[active].sign())
    assert slope[~active].abs().max() <= penalty
    gram = dictionary.T @ dictionary
    step = 1 / torch.linalg.eigvalsh(gram)[-1]
    *_, last = sparse_codes(lambda state: gram @ state, dictionary.T @ x, step, penalty, 20000, soft_threshold)
    torch.testing.assert_close(last, codes, rtol=1e-6, atol=1e-8)
