"""Calls of mmcv.ops to compare the functions of bioattn_mm.mmcv_ops with mmcv's compiled ops."""

from collections.abc import Callable
from functools import partial
from itertools import product

import mmcv.ops
import torch
from torch import Tensor

Results = dict[str, Tensor]
KINDS = (AssertionError, IndexError, RuntimeError, TypeError, ValueError)


def kept_boxes(op: str, **arguments) -> Results:
    """By 'nms', 'batched_nms' or 'soft_nms'."""
    return dict(zip(('dets', 'kept'), getattr(mmcv.ops, op)(**arguments), strict=True))


def nms_match(dets: Tensor, iou_threshold: float) -> Results:
    return {str(index): group for index, group in enumerate(mmcv.ops.nms_match(dets, iou_threshold))}


def bbox_overlaps(boxes: Tensor, others: Tensor, **options) -> Results:
    ious = boxes.new_zeros(len(boxes) if options['aligned'] else (len(boxes), len(others)))
    mmcv._ext.bbox_overlaps(boxes, others, ious, **options)  # mmcv.ops calls it on a GPU alone
    return {'ious': ious}


def with_gradients(function: Callable[..., Tensor], inputs: dict[str, Tensor], output_grad: Tensor) -> Results:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    output = function(*leaves.values())
    output.backward(output_grad)
    return {'output': output.detach(), **{name: leaf.grad for name, leaf in leaves.items()}}


def deform_conv(op: str, inputs: dict[str, Tensor], output_grad: Tensor, **options) -> Results:
    """By 'deform_conv2d' or 'modulated_deform_conv2d'."""
    return with_gradients(lambda *tensors: getattr(mmcv.ops, op)(*tensors, *options.values()), inputs, output_grad)


def psa_mask(psa_type: str, mask_size: tuple[int, int], **arguments) -> Results:
    return with_gradients(mmcv.ops.PSAMask(psa_type, mask_size), **arguments)


def roi_align(features: Tensor, rois: Tensor, output_grad: Tensor, **options) -> Results:
    layer = mmcv.ops.RoIAlign(output_size=output_grad.shape[2:], **options)
    return with_gradients(lambda maps: layer(maps, rois), {'gradient': features}, output_grad)


def refused(function: Callable[..., object], arguments: list) -> Results:
    """Of which kinds the error is that a call raises."""
    try:
        function(*arguments)
    except KINDS as error:
        return {'kinds': torch.tensor([isinstance(error, kind) for kind in KINDS])}
    return {}


def random_boxes(count: int, size: float = 100.0) -> Tensor:
    centres, sides = torch.rand(count, 2) * size, torch.rand(count, 2) * size / 2
    return torch.cat([centres - sides / 2, centres + sides / 2], dim=1)


def integer_boxes(count: int) -> Tensor:
    """Small boxes with integer corners: many pairs have an IoU of exactly a threshold, or of 1."""
    corners = torch.randint(0, 5, (count, 2))
    return torch.cat([corners, corners + torch.randint(1, 7, (count, 2))], dim=1).float()


def distinct_scores(count: int) -> Tensor:
    return (torch.randperm(count) + 1) / count


def random_rois(count: int, num_images: int) -> Tensor:
    """Regions in images of 64 x 80 pixels; some end outside, the first has no area."""
    corners = torch.rand(count, 2, 2) * torch.tensor([100.0, 84.0]) - 10
    corners = corners.sort(dim=1).values.flatten(1)
    corners[0, 2:] = corners[0, :2]
    return torch.cat([torch.randint(0, num_images, (count, 1)), corners], dim=1)


def features(num_images: int) -> Tensor:
    """Feature maps at stride 4 of images of 64 x 80 pixels, with zeros as after a ReLU."""
    return torch.randn(num_images, 3, 16, 20).relu()


# The function that makes the call and its arguments, by name of the case.
CASES: dict[str, tuple[Callable[..., Results], dict]] = {}


def add(name: str, function: Callable[..., Results], **arguments: object) -> None:
    CASES[name] = function, arguments


def add_boxes() -> None:
    for offset, threshold in product((0, 1), (0.3, 0.6, 0.7)):
        options = dict(op='nms', iou_threshold=threshold, offset=offset)
        name = f'threshold {threshold}, offset {offset}'
        add(f'nms, {name}', kept_boxes, boxes=random_boxes(300), scores=distinct_scores(300), **options)
        name = f'nms, IoU equal to {name}'
        add(name, kept_boxes, boxes=integer_boxes(100), scores=distinct_scores(100), **options)
    boxes = dict(boxes=random_boxes(300), scores=distinct_scores(300))
    options = dict(op='nms', iou_threshold=0.5, score_threshold=0.4, max_num=20)
    add('nms, score_threshold and max_num', kept_boxes, **boxes, **options)
    for op in ('nms', 'soft_nms'):
        none = dict(boxes=torch.zeros(0, 4), scores=torch.zeros(0), iou_threshold=0.5)
        add(f'{op}, no boxes', kept_boxes, op=op, **none)
        config = dict(type=op, iou_threshold=0.5, **(dict(min_score=0.05) if op == 'soft_nms' else {}))
        options = dict(op='batched_nms', idxs=torch.randint(0, 5, (300,)), nms_cfg=config)
        add(f'batched_nms, {op}', kept_boxes, **boxes, **options)

    for method, offset in product(('naive', 'linear', 'gaussian'), (0, 1)):
        options = dict(op='soft_nms', iou_threshold=0.3, sigma=0.5, min_score=0.05, method=method, offset=offset)
        name = f'soft_nms, {method}, offset {offset}'
        add(name, kept_boxes, boxes=random_boxes(100), scores=distinct_scores(100), **options)
        scores = torch.randint(1, 5, (60,)) / 4
        add(f'{name}, equal scores', kept_boxes, boxes=integer_boxes(60), scores=scores, **options)
    for boxes in (random_boxes(100), integer_boxes(100)):
        dets = torch.cat([boxes, distinct_scores(100)[:, None]], dim=1)
        add(f'nms_match, first box {boxes[0, 0]:.1f}', nms_match, dets=dets, iou_threshold=0.3)
    for mode, aligned, offset in product((0, 1), (False, True), (0, 1)):
        options = dict(mode=mode, aligned=aligned, offset=offset)
        boxes = dict(boxes=random_boxes(20), others=random_boxes(20 if aligned else 30))
        add(f'bbox_overlaps, {options}', bbox_overlaps, **boxes, **options)


def add_convolutions() -> None:
    for groups, deform_groups, stride, padding, dilation in (
        (1, 1, 1, 1, 1),
        (2, 2, 2, (1, 0), 1),
        (1, 4, 1, 2, (2, 1)),
    ):
        options = dict(stride=stride, padding=padding, dilation=dilation, groups=groups, deform_groups=deform_groups)
        image, weight = torch.randn(3, 4, 9, 8), torch.randn(6, 4 // groups, 3, 2)
        grad = torch.randn_like(torch.nn.functional.conv2d(image, weight, None, stride, padding, dilation, groups))
        # Half of the offsets are whole: at the borders the derivative depends on the side that is taken.
        offsets = 2 * torch.randn(3, 12 * deform_groups, *grad.shape[2:])
        offsets = torch.where(torch.rand_like(offsets) < 0.5, offsets.round(), offsets)
        inputs, mask = dict(input=image, offset=offsets), torch.rand(3, 6 * deform_groups, *grad.shape[2:])
        arguments = dict(op='deform_conv2d', inputs=dict(inputs, weight=weight), output_grad=grad)
        add(f'deform_conv, {options}', deform_conv, **arguments, **options)
        inputs.update(mask=mask, weight=weight)
        arguments = dict(op='modulated_deform_conv2d', output_grad=grad)
        add(f'modulated_deform_conv, {options}', deform_conv, **arguments, inputs=inputs, bias=None, **options)
        inputs = dict(inputs, bias=torch.randn(6))
        add(f'modulated_deform_conv, {options}, bias', deform_conv, **arguments, inputs=inputs, **options)
    inputs = dict(input=torch.randn(2, 4, 3, 4), offset=torch.randn(2, 18, 5, 6), mask=torch.rand(2, 9, 5, 6))
    inputs.update(weight=torch.randn(6, 4, 3, 3))
    arguments = dict(op='modulated_deform_conv2d', output_grad=torch.randn(2, 6, 3, 4), bias=None)
    name = 'modulated_deform_conv, offsets of a larger map'
    add(name, deform_conv, **arguments, inputs=inputs, stride=1, padding=1)
    for psa_type, mask_size in product(('collect', 'distribute'), ((5, 7), (3, 1))):
        inputs = dict(input=torch.randn(2, mask_size[0] * mask_size[1], 4, 5))
        options = dict(output_grad=torch.randn(2, 20, 4, 5), mask_size=mask_size, psa_type=psa_type)
        add(f'psa_mask, {psa_type}, {mask_size}', psa_mask, inputs=inputs, **options)


def add_regions() -> None:
    for aligned, sampling_ratio in product((True, False), (0, 1, 2, 3)):
        options = dict(spatial_scale=0.25, sampling_ratio=sampling_ratio, aligned=aligned)
        name = f'aligned {aligned}, sampling_ratio {sampling_ratio}'
        tensors = dict(features=features(2), rois=random_rois(12, 2), output_grad=torch.randn(12, 3, 3, 5))
        add(f'roi_align, {name}', roi_align, **tensors, **options)
        if sampling_ratio in (0, 2):  # without samples, mmcv's maximum is the least number
            tensors.update(features=torch.randn(2, 3, 16, 20), rois=random_rois(12, 2)[1:])
            tensors.update(output_grad=tensors['output_grad'][1:])
            add(f'roi_align, maximum, {name}', roi_align, **tensors, **options, pool_mode='max')
    tensors = dict(features=features(2), rois=random_rois(12, 2), output_grad=torch.randn(12, 3, 7, 7))
    double = {name: tensor.double() for name, tensor in tensors.items()}
    add('roi_align, float64', roi_align, **double, spatial_scale=0.25)
    tensors.update(rois=torch.zeros(0, 5), output_grad=torch.zeros(0, 3, 7, 7))
    add('roi_align, no regions', roi_align, **tensors)


def add_refused() -> None:
    """Calls that mmcv refuses: a shape, a dtype, a number of groups or a name that does not fit."""
    boxes, scores, maps, rois = random_boxes(9), distinct_scores(9), features(2), random_rois(9, 2)
    image, offset, mask = torch.randn(1, 4, 6, 6), torch.randn(1, 18, 6, 6), torch.rand(1, 9, 6, 6)
    weight, logits, ops = torch.randn(6, 4, 3, 3), torch.randn(3, 2), mmcv.ops
    for index, (function, *arguments) in enumerate((
        (ops.nms, boxes, scores[:8], 0.5),
        (ops.nms, boxes.double(), scores, 0.5),
        (ops.nms, boxes.long(), scores.long(), 0.5),
        (ops.soft_nms, boxes[:, :3], scores),
        (ops.nms_match, boxes, 0.5),
        (ops.bbox_overlaps, boxes, boxes, 'giou'),
        (ops.roi_align, maps.double(), rois, 3),
        (ops.roi_align, maps[0], rois, 3, 1.0, 2, 'max'),
        (ops.roi_pool, maps, rois[:, 1:], 3),
        (ops.deform_conv2d, image, offset, weight, 1, 1, 1, 2),
        (ops.deform_conv2d, image, offset, weight, 1, 1, 1, 1, 2),
        (ops.deform_conv2d, image, offset[..., :5], weight, 1, 1, 1),
        (ops.modulated_deform_conv2d, image, offset, mask, weight[:, :2], None, 1, 1, 1),
        (ops.PSAMask, 'gather', 3),
        (ops.sigmoid_focal_loss, logits, torch.zeros(3)),
        (ops.softmax_focal_loss, logits, torch.zeros(2).long()),
        (ops.carafe, maps, torch.rand(2, 9, 30, 40), 3, 1, 2),
    )):  # fmt: skip
        name = getattr(function, '__name__', function)
        add(f'refused, {index}, {name}', partial(refused, function), arguments=arguments)


with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    add_boxes()
    add_convolutions()
    add_regions()
    add_refused()
