"""SimpleFeaturePyramid: sizes, where each level comes from, and what is refused when it is built."""

import pytest
import torch

from bioattn_mm.systems.common.simple_feature_pyramid import SimpleFeaturePyramid

STRIDES = [4, 8, 16, 32, 64]
LEVELS = [(20, 28), (10, 14), (5, 7), (3, 4), (2, 2)]
# Channels and sizes of the inputs, other arguments, the input of each level, and the levels.
PYRAMIDS = {
    'of the last map': (16, [(5, 7)] * 2, dict(scales=(4, 2, 1, 0.5, 0.25), head_strides=STRIDES), (1,) * 5, LEVELS),
    'of maps of one stride': ([16, 12, 8, 4], [(5, 7)] * 4, {}, (0, 1, 2, 3), LEVELS[:4]),
    'of maps of two strides': (
        [16, 12],
        [(5, 7), (3, 4)],
        dict(scales=(4, 2, 1, 1, 0.5), stride=[16, 32], sources=[0, 0, 0, 1, 1], head_strides=STRIDES),
        (0, 0, 0, 1, 1),
        LEVELS,
    ),
}


@pytest.mark.parametrize('name', PYRAMIDS)
def test_sizes_and_sources_of_the_levels(name: str) -> None:
    channels, sizes, options, sources, levels = PYRAMIDS[name]
    neck = SimpleFeaturePyramid(channels, 8, **options)
    assert neck.strides == tuple(STRIDES[: len(levels)])
    numbers = [channels] * 2 if isinstance(channels, int) else channels
    inputs = [torch.randn(2, number, *size, requires_grad=True) for number, size in zip(numbers, sizes, strict=True)]
    outputs = neck(tuple(inputs))
    assert [output.shape for output in outputs] == [(2, 8, *size) for size in levels]
    for output, source in zip(outputs, sources, strict=True):
        gradients = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True, retain_graph=True)
        assert [gradient is not None for gradient in gradients] == [i == source for i in range(len(inputs))]
    sum(output.square().sum() for output in outputs).backward()
    assert all(parameter.grad is not None for parameter in neck.parameters())


@torch.no_grad()
def test_pooling_down_takes_the_largest_value_of_each_cell() -> None:
    pooling = SimpleFeaturePyramid(4, 8, (0.5,)).levels[0][0]
    x = torch.arange(15.0).view(1, 1, 3, 5)
    assert pooling(x).tolist() == [[[[6, 8, 9], [11, 13, 14]]]]
