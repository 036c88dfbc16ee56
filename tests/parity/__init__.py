"""Recorded features of the authors' own implementations, and how they were recorded.

Every parameter and floating-point buffer of a reference was overwritten with `fill_value(name, shape)`, then the
features of `image(B, H, W)` were recorded in eval mode in float32. `NAME.json` says which system, variant and image;
`NAME.npz` holds `subsample` of each stage; `manifest_*.json` lists the names and shapes of the released state dict.

`released_heads.json` lists the necks and heads of the released detectors and segmentors, as the libraries that the
authors pin build them from their configs: mmdet 2.28.2 with mmcv 1.7.1, mmseg 0.30.0, mmdet 3.0.0 with mmcv 2.0.0,
mmseg 1.0.0. `whole_*_tiny.npz` holds what these libraries' whole models, around the authors' backbone, predicted:
filled in the same way, with `img_size=224`, in eval mode and in float64, in which no two scores are so near to each
other that rounding could swap them.
"""

import json
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).parent


def fill_value(name: str, shape: list[int]) -> torch.Tensor:
    """Value of the entry `name` of a reference state dict, float32."""
    noise = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    if name.endswith('running_var'):
        return 1 + 0.1 * noise.abs()
    if name.endswith('running_mean'):
        return 0.1 * noise
    if noise.ndim <= 1:
        around_one = name.endswith('weight') or noise.numel() == 1
        return 1 + 0.1 * noise if around_one else 0.1 * noise
    return noise / math.sqrt(math.prod(noise.shape[1:]))


def released_state_dict(manifest: str) -> dict[str, torch.Tensor]:
    """The filled state dict of `manifest_{manifest}.json`, under the authors' names."""
    return {name: fill_value(name, shape) for name, shape in read_json(f'manifest_{manifest}').items()}


def released_heads(framework: str, variant: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the neck and the heads around a variant of TransNeXt; tiny and small have one backbone."""
    shapes = read_json('released_heads')[framework]
    return {name: tuple(shape) for name, shape in {**shapes['tiny'], **shapes.get(variant, {})}.items()}


def image(batch: int, height: int, width: int) -> torch.Tensor:
    """The input of every vector: standard normal, (batch, 3, height, width)."""
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(height * 10007 + width))


def subsample(feature: torch.Tensor) -> np.ndarray:
    """What a vector keeps of a (B, C, H, W) map: every 5th channel, every 3rd row and column."""
    return feature.detach()[:, ::5, ::3, ::3].contiguous().numpy()


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """max|got - want| / max|want|; a faithful float32 port stays under 1e-4."""
    assert got.shape == want.shape, (got.shape, want.shape)
    return float(np.abs(got - want).max() / np.abs(want).max())


def vectors(system: str) -> list[str]:
    """Names of the vectors of a system, such as 'transnext'."""
    return sorted(path.stem for path in FOLDER.glob(f'{system}_*.json'))


def read_json(name: str) -> dict:
    return json.loads((FOLDER / f'{name}.json').read_text())


def check_features(backbone: Callable[[torch.Tensor], Sequence[torch.Tensor]], name: str) -> None:
    """What a backbone, with the values of `fill_value`, gives for the image of a vector is what was recorded."""
    batch, _, height, width = read_json(name)['image']
    recorded = np.load(FOLDER / f'{name}.npz')
    outputs = backbone(image(batch, height, width))
    assert sorted(recorded.files) == [f'stage{stage}' for stage in range(len(outputs))]
    for stage, output in enumerate(outputs):
        assert relative_error(subsample(output), recorded[f'stage{stage}']) < 1e-4
