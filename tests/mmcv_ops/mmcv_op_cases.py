"""Calls of mmcv.ops to compare the functions of bioattn_mm.mmcv_ops with mmcv's compiled ops.

Run as a script, in a process whose mmcv has them, it writes their results: `python mmcv_op_cases.py FILE`.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import torch
from mmcv import ops
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction
from torch import Tensor

import bioattn_mm  # noqa: F401  (provides mmcv._ext where there is none)

KINDS = (AssertionError, IndexError, RuntimeError, TypeError, ValueError)


def bbox_overlaps(boxes: Tensor, others: Tensor, **options) -> list[Tensor]:
    ious = boxes.new_zeros(len(boxes) if options['aligned'] else (len(boxes), len(others)))
    ops.bbox.ext_module.bbox_overlaps(boxes, others, ious, **options)  # mmcv.ops calls it on a GPU alone
    return [ious]


def gradients(
    function: Callable[..., Tensor], inputs: list[Tensor], *args: object, **options: object
) -> list[Tensor]:
    """The output, and the gradients of the inputs where its own are powers of two, by which a product is exact."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = function(*leaves, *args)
    weights = (-2.0) ** (torch.arange(output.numel(), device=output.device) % 4 - 2)
    return [output.detach(), *torch.autograd.grad(output, leaves, weights.view_as(output).to(output))]


def refused(function: Callable[..., object], *args: object) -> list[Tensor]:
    """Of which kinds the error is that a call raises."""
    try:
        function(*args)
    except KINDS as error:
        return [torch.tensor([isinstance(error, kind) for kind in KINDS])]
    return []


def random_boxes(count: int) -> Tensor:
    centres, sides = torch.rand(count, 2) * 100, torch.rand(count, 2) * 50
    return torch.cat([centres - sides / 2, centres + sides / 2], dim=1)


def integer_boxes(count: int) -> Tensor:
    """Small boxes with integer corners: many pairs have an IoU of exactly a threshold, or of 1."""
    corners = torch.randint(0, 5, (count, 2))
    return torch.cat([corners, corners + torch.randint(1, 7, (count, 2))], dim=1).float()


def distinct_scores(count: int) -> Tensor:
    return (torch.randperm(count) + 1) / count


def random_rois(count: int) -> Tensor:
    """Regions in two images of 64 x 80 pixels; some end outside, the first has no area."""
    corners = torch.rand(count, 2, 2) * torch.tensor([100.0, 84.0]) - 10
    corners = corners.sort(dim=1).values.flatten(1)
    corners[0, 2:] = corners[0, :2]
    return torch.cat([torch.randint(0, 2, (count, 1)), corners], dim=1)


def features() -> Tensor:
    """Feature maps at stride 4 of two images of 64 x 80 pixels, with zeros as after a ReLU."""
    return torch.randn(2, 3, 16, 20).relu()


def attend(value: Tensor, locations: Tensor, weights: Tensor, shapes: Tensor, starts: Tensor) -> Tensor:
    return MultiScaleDeformableAttnFunction.apply(value, shapes, starts, locations, weights, 64)


# A call, of which the results are tensors, by its name, its options and a number.
CASES: dict[str, partial[Sequence[Tensor]]] = {}


def add(name: str, function: Callable[..., Sequence[Tensor]], *args: object, **options: object) -> None:
    CASES[', '.join([name, *map(str, options.values()), str(len(CASES))])] = partial(function, *args, **options)


def add_boxes() -> None:
    for offset, iou_threshold in product((0, 1), (0.3, 0.6, 0.7)):
        for boxes in (random_boxes(300), integer_boxes(100)):
            add('nms', ops.nms, boxes, distinct_scores(len(boxes)), iou_threshold=iou_threshold, offset=offset)
    boxes, scores, classes = random_boxes(300), distinct_scores(300), torch.randint(0, 5, (300,))
    add('nms', ops.nms, boxes, scores, iou_threshold=0.5, score_threshold=0.4, max_num=20)
    for name, options in dict(nms={}, soft_nms=dict(min_score=0.05)).items():
        add(f'{name} of no boxes', getattr(ops, name), torch.zeros(0, 4), torch.zeros(0), iou_threshold=0.5)
        config = dict(type=name, iou_threshold=0.5, **options)
        add(f'batched {name}', ops.batched_nms, boxes, scores, classes, config)
    for method, offset in product(('naive', 'linear', 'gaussian'), (0, 1)):
        options = dict(iou_threshold=0.3, sigma=0.5, min_score=0.05, method=method, offset=offset)
        add('soft_nms', ops.soft_nms, random_boxes(100), distinct_scores(100), **options)
        add('soft_nms, equal scores', ops.soft_nms, integer_boxes(60), torch.randint(1, 5, (60,)) / 4, **options)
    for boxes in (random_boxes(100), integer_boxes(100)):
        add('nms_match', ops.nms_match, torch.cat([boxes, distinct_scores(100)[:, None]], dim=1), iou_threshold=0.3)
    for mode, aligned, offset in product((0, 1), (False, True), (0, 1)):
        options = dict(mode=mode, aligned=aligned, offset=offset)
        add('bbox_overlaps', bbox_overlaps, random_boxes(20), random_boxes(20 if aligned else 30), **options)


def add_convolutions() -> None:
    plain, modulated = ops.deform_conv2d, ops.modulated_deform_conv2d
    for groups, deform_groups, stride, padding, dilation in (
        (1, 1, 1, 1, 1),
        (2, 2, 2, (1, 0), 1),
        (1, 4, 1, 2, (2, 1)),
    ):
        image, weight = torch.randn(3, 4, 9, 8), torch.randn(6, 4 // groups, 3, 2)
        size = torch.nn.functional.conv2d(image, weight, None, stride, padding, dilation, groups).shape[2:]
        # Half of the offsets are whole: at the borders the derivative depends on the side that is taken.
        offsets, mask = 2 * torch.randn(3, 12 * deform_groups, *size), torch.rand(3, 6 * deform_groups, *size)
        offsets = torch.where(torch.rand_like(offsets) < 0.5, offsets.round(), offsets)
        geometry = stride, padding, dilation, groups, deform_groups
        add('deform_conv', gradients, plain, [image, offsets, weight], *geometry)
        inputs = [image, offsets, mask, weight]
        add('modulated deform_conv', gradients, modulated, inputs, None, *geometry)
        add('modulated deform_conv, bias', gradients, modulated, [*inputs, torch.randn(6)], *geometry)
    inputs = [torch.randn(2, 4, 3, 4), torch.randn(2, 18, 5, 6), torch.rand(2, 9, 5, 6), torch.randn(6, 4, 3, 3)]
    add('modulated deform_conv, offsets of a larger map', gradients, modulated, inputs, None, 1, 1)
    for psa_type, (height, width) in product(('collect', 'distribute'), ((5, 7), (3, 1))):
        layer = ops.PSAMask(psa_type, (height, width))
        add(f'psa_mask, {psa_type}', gradients, layer, [torch.randn(2, height * width, 4, 5)])


def add_regions() -> None:
    for aligned, sampling_ratio in product((True, False), (0, 1, 2, 3)):
        maps, rois = features(), random_rois(12)
        add('roi_align', gradients, ops.roi_align, [maps], rois, (3, 5), 0.25, sampling_ratio, 'avg', aligned)
        if sampling_ratio in (0, 2):  # without samples, mmcv's maximum is the least number
            maps, rois = torch.randn(2, 3, 16, 20), random_rois(12)[1:]
            add('roi_align max', gradients, ops.roi_align, [maps], rois, (3, 5), 0.25, sampling_ratio, 'max', aligned)
    for rois in (random_rois(12).double(), torch.zeros(0, 5).double()):
        add('roi_align, float64', gradients, ops.roi_align, [features().double()], rois, 7, 0.25)


def add_refused() -> None:
    """Calls whose shapes, types or numbers of groups do not fit, which mmcv's Python lets pass."""
    boxes, scores, maps, rois = random_boxes(9), distinct_scores(9), features(), random_rois(9)
    image, offset, mask = torch.randn(1, 4, 6, 6), torch.randn(1, 18, 6, 6), torch.rand(1, 9, 6, 6)
    weight = torch.randn(6, 4, 3, 3)
    for arguments in (
        (ops.nms, boxes.double(), scores, 0.5),
        (ops.nms, boxes.long(), scores.long(), 0.5),
        (ops.roi_align, maps.double(), rois, 3),
        (ops.roi_align, maps[0], rois, 3, 1.0, 2, 'max'),
        (ops.deform_conv2d, image, offset, weight, 1, 1, 1, 2),
        (ops.deform_conv2d, image, offset, weight, 1, 1, 1, 1, 2),
        (ops.deform_conv2d, image, offset[..., :5], weight, 1, 1, 1),
        (ops.modulated_deform_conv2d, image, offset, mask, weight[:, :2], None, 1, 1, 1),
    ):
        add('refused', refused, *arguments)


def attention_over_levels() -> partial:
    """Deformable attention; some of the points are outside of the levels."""
    shapes = torch.tensor([[6, 4], [3, 2], [1, 1]])
    sizes = shapes.prod(1)
    inputs = [torch.randn(2, 31, 2, 4), 1.4 * torch.rand(2, 5, 2, 3, 4, 2) - 0.2, torch.rand(2, 5, 2, 3, 4)]
    return partial(gradients, attend, inputs, shapes, sizes.cumsum(0) - sizes)


with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    add_boxes()
    add_convolutions()
    add_regions()
    add_refused()
    focal = partial(gradients, ops.sigmoid_focal_loss, [torch.randn(8, 7)], torch.arange(8), 2.0, 0.25, None, 'none')
    align = partial(gradients, ops.roi_align, [features()], random_rois(12), (3, 5), 0.25, 0, 'avg', True)
    IN_HALF_PRECISION = dict(sigmoid_focal_loss=focal, roi_align=align, deformable_attention=attention_over_levels())

if __name__ == '__main__':
    if sys.modules['mmcv._ext'].__spec__.origin == 'bioattn_mm.mmcv_ops.stand_ins':
        sys.exit('bioattn_mm has replaced compiled ops, or there are none')
    torch.set_num_threads(1)
    torch.save({name: [*case()] for name, case in CASES.items()}, sys.argv[1])
