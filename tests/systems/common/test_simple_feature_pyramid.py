"""SimpleFeaturePyramid: sizes, where each level comes from, and what is refused when it is built."""

import pytest
import torch

from bioattn_mm.systems.common.simple_feature_pyramid import SimpleFeaturePyramid

SCALES = (4, 2, 1, 0.5, 0.25)


def test_levels_of_the_last_map() -> None:
    neck = SimpleFeaturePyramid(16, 8, SCALES, head_strides=[4, 8, 16, 32, 64])
    assert neck.strides == (4, 8, 16, 32, 64)
    unused, last = torch.randn(2, 16, 5, 7, requires_grad=True), torch.randn(2, 16, 5, 7, requires_grad=True)
    outputs = neck((unused, last))
    assert [tuple(output.shape) for output in outputs] == [
        (2, 8, 20, 28), (2, 8, 10, 14), (2, 8, 5, 7), (2, 8, 3, 4), (2, 8, 2, 2),
    ]  # fmt: skip
    sum(output.square().sum() for output in outputs).backward()
    assert unused.grad is None
    assert last.grad.isfinite().all()
    assert all(parameter.grad is not None for parameter in neck.parameters())


@pytest.mark.parametrize(
    ('channels', 'options', 'sources'),
    [
        ([16, 12, 8, 4], {}, (0, 1, 2, 3)),
        (
            [16, 12],
            dict(scales=(4, 2, 1, 1, 0.5), stride=[16, 32], sources=[0, 0, 0, 1, 1], head_strides=[4, 8, 16, 32, 64]),
            (0, 0, 0, 1, 1),
        ),
    ],
    ids=['maps of one stride', 'of two'],
)
def test_each_level_of_its_own_map(channels: list[int], options: dict, sources: tuple[int, ...]) -> None:
    neck = SimpleFeaturePyramid(channels, 8, **options)
    sizes = [(5, 7)] * 4 if len(channels) == 4 else [(5, 7), (3, 4)]
    inputs = [torch.randn(1, number, *size, requires_grad=True) for number, size in zip(channels, sizes)]
    outputs = neck(tuple(inputs))
    assert [tuple(output.shape[2:]) for output in outputs[:3]] == [(20, 28), (10, 14), (5, 7)]
    assert [tuple(output.shape[2:]) for output in outputs[3:]] == ([(3, 4), (2, 2)] if options else [(3, 4)])
    for output, source in zip(outputs, sources, strict=True):
        gradients = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True)
        assert [gradient is not None for gradient in gradients] == [i == source for i in range(len(inputs))]


@torch.no_grad()
def test_pooling_down_takes_the_largest_value_of_each_cell() -> None:
    pooling = SimpleFeaturePyramid(4, 8, (0.5,)).levels[0][0]
    x = torch.arange(15.0).view(1, 1, 3, 5)
    assert pooling(x).tolist() == [[[[6, 8, 9], [11, 13, 14]]]]
