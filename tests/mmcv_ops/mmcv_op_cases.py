"""Calls of mmcv.ops to compare the functions of bioattn_mm.mmcv_ops with mmcv's compiled ops."""

from collections.abc import Callable
from functools import partial
from itertools import product

import mmcv.ops
import torch
from torch import Tensor

Results = dict[str, Tensor]
KINDS = (AssertionError, IndexError, RuntimeError, TypeError, ValueError)


def nms(boxes: Tensor, scores: Tensor, **options) -> Results:
    dets, kept = mmcv.ops.nms(boxes, scores, **options)
    return {'dets': dets, 'kept': kept}


def batched_nms(boxes: Tensor, scores: Tensor, classes: Tensor, nms_cfg: dict) -> Results:
    dets, kept = mmcv.ops.batched_nms(boxes, scores, classes, nms_cfg)
    return {'dets': dets, 'kept': kept}


def soft_nms(boxes: Tensor, scores: Tensor, **options) -> Results:
    dets, kept = mmcv.ops.soft_nms(boxes, scores, **options)
    return {'dets': dets, 'kept': kept}


def nms_match(dets: Tensor, iou_threshold: float) -> Results:
    return {str(index): group for index, group in enumerate(mmcv.ops.nms_match(dets, iou_threshold))}


def bbox_overlaps(boxes: Tensor, others: Tensor, **options) -> Results:
    ious = boxes.new_zeros(len(boxes) if options['aligned'] else (len(boxes), len(others)))
    mmcv._ext.bbox_overlaps(boxes, others, ious, **options)  # mmcv.ops calls it on a GPU alone
    return {'ious': ious}


def with_gradients(
    function: Callable[..., Tensor], inputs: dict[str, Tensor], output_grad: Tensor, **options
) -> Results:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    output = function(*leaves.values(), **options)
    output.backward(output_grad)
    return {'output': output.detach(), **{name: leaf.grad for name, leaf in leaves.items()}}


def deform_conv(**arguments) -> Results:
    def convolve(*tensors: Tensor, **options) -> Tensor:
        return mmcv.ops.deform_conv2d(*tensors, *options.values())

    return with_gradients(convolve, **arguments)


def modulated_deform_conv(**arguments) -> Results:
    def convolve(*tensors: Tensor, **options) -> Tensor:
        return mmcv.ops.modulated_deform_conv2d(*tensors, *options.values())

    return with_gradients(convolve, **arguments)


def psa_mask(psa_type: str, mask_size: tuple[int, int], **arguments) -> Results:
    return with_gradients(mmcv.ops.PSAMask(psa_type, mask_size), **arguments)


def sa_conv(x: Tensor) -> Results:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = mmcv.ops.SAConv2d(4, 6, 3, padding=1, use_deform=True)
    for parameter in layer.parameters():
        torch.nn.init.constant_(parameter, 0.1) if parameter.ndim == 1 else None
    return {'output': layer(x).detach()}


def roi_align(features: Tensor, rois: Tensor, output_grad: Tensor, **options) -> Results:
    features = features.clone().requires_grad_()
    layer = mmcv.ops.RoIAlign(output_size=output_grad.shape[2:], **options)
    output = layer(features, rois)
    output.backward(output_grad)
    return {'output': output.detach(), 'gradient': features.grad}


def roi_extractor(level_0: Tensor, level_1: Tensor, rois: Tensor) -> Results:
    from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor

    roi_layer = {'type': 'RoIAlign', 'output_size': 7, 'sampling_ratio': 0}
    extractor = SingleRoIExtractor(roi_layer, level_0.size(1), featmap_strides=[4, 8], finest_scale=20)
    return {'output': extractor((level_0, level_1), rois)}


def multiclass_nms(boxes: Tensor, scores: Tensor) -> Results:
    from mmdet.models.layers import multiclass_nms

    dets, labels = multiclass_nms(boxes, scores, 0.05, {'type': 'nms', 'iou_threshold': 0.5}, max_num=50)
    return {'dets': dets, 'labels': labels}


def crop_and_resize(masks: Tensor, boxes: Tensor) -> Results:
    from mmdet.structures.mask import BitmapMasks

    masks = BitmapMasks(masks.numpy(), *masks.shape[1:])
    cropped = masks.crop_and_resize(boxes.numpy(), (14, 14), torch.arange(len(boxes)).numpy())
    return {'masks': torch.from_numpy(cropped.masks)}


def refused(function: Callable[..., object], **arguments) -> Results:
    """Of which kinds the error is that a call raises."""
    try:
        function(*arguments.values())
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


def _make_cases() -> dict[str, tuple[Callable[..., Results], dict]]:
    cases = {}
    for offset in (0, 1):
        for threshold in (0.3, 0.6, 0.7):
            options = {'iou_threshold': threshold, 'offset': offset}
            name = f'nms, threshold {threshold}, offset {offset}'
            cases[name] = nms, {'boxes': random_boxes(300), 'scores': distinct_scores(300), **options}
            name = f'nms, IoU equal to threshold {threshold}, offset {offset}'
            cases[name] = nms, {'boxes': integer_boxes(100), 'scores': distinct_scores(100), **options}
    options = {'iou_threshold': 0.5, 'score_threshold': 0.4, 'max_num': 20}
    cases['nms, score_threshold and max_num'] = (
        nms,
        {'boxes': random_boxes(300), 'scores': distinct_scores(300), **options},
    )
    cases['nms, no boxes'] = nms, {'boxes': torch.zeros(0, 4), 'scores': torch.zeros(0), 'iou_threshold': 0.5}

    arguments = {'boxes': random_boxes(300), 'scores': distinct_scores(300)}
    arguments |= {'classes': torch.randint(0, 5, (300,)), 'nms_cfg': {'type': 'nms', 'iou_threshold': 0.5}}
    cases['batched_nms'] = batched_nms, arguments

    arguments = dict(arguments, nms_cfg={'type': 'soft_nms', 'iou_threshold': 0.5, 'min_score': 0.05})
    cases['batched_nms, soft_nms'] = batched_nms, arguments

    for method, offset in product(('naive', 'linear', 'gaussian'), (0, 1)):
        options = {'iou_threshold': 0.3, 'sigma': 0.5, 'min_score': 0.05, 'method': method, 'offset': offset}
        arguments = {'boxes': random_boxes(100), 'scores': distinct_scores(100)}
        cases[f'soft_nms, {method}, offset {offset}'] = soft_nms, arguments | options
        arguments = {'boxes': integer_boxes(60), 'scores': torch.randint(1, 5, (60,)) / 4}
        cases[f'soft_nms, {method}, offset {offset}, equal scores'] = soft_nms, arguments | options
    arguments = {'boxes': torch.zeros(0, 4), 'scores': torch.zeros(0)}
    cases['soft_nms, no boxes'] = soft_nms, arguments
    for boxes in (random_boxes(100), integer_boxes(100)):
        arguments = {'dets': torch.cat([boxes, distinct_scores(100)[:, None]], dim=1), 'iou_threshold': 0.3}
        cases[f'nms_match, first box {boxes[0, 0]:.1f}'] = nms_match, arguments
    for mode, aligned, offset in product((0, 1), (False, True), (0, 1)):
        arguments = {'boxes': random_boxes(20), 'others': random_boxes(20 if aligned else 30)}
        options = {'mode': mode, 'aligned': aligned, 'offset': offset}
        cases[f'bbox_overlaps, {options}'] = bbox_overlaps, arguments | options

    for groups, deform_groups, stride, padding, dilation in (
        (1, 1, 1, 1, 1),
        (2, 2, 2, (1, 0), 1),
        (1, 4, 1, 2, (2, 1)),
    ):
        options = dict(stride=stride, padding=padding, dilation=dilation, groups=groups, deform_groups=deform_groups)
        image, weight = torch.randn(3, 4, 9, 8), torch.randn(6, 4 // groups, 3, 2)
        output = torch.nn.functional.conv2d(image, weight, None, stride, padding, dilation, groups)
        # Half of the offsets are whole: at the borders the derivative depends on the side that is taken.
        offsets = 2 * torch.randn(3, 12 * deform_groups, *output.shape[2:])
        offsets = torch.where(torch.rand_like(offsets) < 0.5, offsets.round(), offsets)
        inputs = {'input': image, 'offset': offsets, 'weight': weight}
        arguments = {'output_grad': torch.randn_like(output), **options}
        cases[f'deform_conv, {options}'] = deform_conv, {'inputs': inputs, **arguments}
        mask = torch.rand(3, 6 * deform_groups, *output.shape[2:])
        inputs = {'input': image, 'offset': inputs['offset'], 'mask': mask, 'weight': weight}
        cases[f'modulated_deform_conv, {options}'] = (
            modulated_deform_conv,
            {'inputs': inputs, 'output_grad': arguments['output_grad'], 'bias': None, **options},
        )
        inputs = {**inputs, 'bias': torch.randn(6)}
        cases[f'modulated_deform_conv, bias, {options}'] = (
            modulated_deform_conv,
            {'inputs': inputs, 'output_grad': arguments['output_grad'], **options},
        )
    inputs = {'input': torch.randn(2, 4, 3, 4), 'offset': torch.randn(2, 18, 5, 6), 'mask': torch.rand(2, 9, 5, 6)}
    arguments = {'inputs': {**inputs, 'weight': torch.randn(6, 4, 3, 3)}, 'output_grad': torch.randn(2, 6, 3, 4)}
    options = dict(bias=None, stride=1, padding=1)
    cases['modulated_deform_conv, offsets of a larger map'] = modulated_deform_conv, {**arguments, **options}
    cases['SAConv2d'] = sa_conv, {'x': torch.randn(2, 4, 7, 9)}
    for psa_type, mask_size in product(('collect', 'distribute'), ((5, 7), (3, 1))):
        inputs = {'input': torch.randn(2, mask_size[0] * mask_size[1], 4, 5)}
        arguments = {'inputs': inputs, 'output_grad': torch.randn(2, 20, 4, 5), 'mask_size': mask_size}
        cases[f'psa_mask, {psa_type}, {mask_size}'] = psa_mask, {**arguments, 'psa_type': psa_type}

    for aligned, sampling_ratio in product((True, False), (0, 2)):
        cases[f'roi_align, maximum, aligned {aligned}, sampling_ratio {sampling_ratio}'] = (
            roi_align,
            {
                'features': torch.randn(2, 3, 16, 20),
                'rois': random_rois(12, 2)[1:],  # without samples, mmcv's maximum is the least number
                'output_grad': torch.randn(11, 3, 3, 5),
                'spatial_scale': 0.25,
                'sampling_ratio': sampling_ratio,
                'pool_mode': 'max',
                'aligned': aligned,
            },
        )
    for aligned, sampling_ratio in product((True, False), (0, 1, 2, 3)):
        cases[f'roi_align, aligned {aligned}, sampling_ratio {sampling_ratio}'] = (
            roi_align,
            {
                'features': features(2),
                'rois': random_rois(12, 2),
                'output_grad': torch.randn(12, 3, 3, 5),
                'spatial_scale': 0.25,
                'sampling_ratio': sampling_ratio,
                'aligned': aligned,
            },
        )
    cases['roi_align, float64'] = (
        roi_align,
        {
            'features': features(2).double(),
            'rois': random_rois(12, 2).double(),
            'output_grad': torch.randn(12, 3, 7, 7).double(),
            'spatial_scale': 0.25,
        },
    )
    cases['roi_align, no regions'] = (
        roi_align,
        {'features': features(2), 'rois': torch.zeros(0, 5), 'output_grad': torch.zeros(0, 3, 7, 7)},
    )

    cases['mmdet SingleRoIExtractor'] = (
        roi_extractor,
        {'level_0': features(2), 'level_1': torch.randn(2, 3, 8, 10), 'rois': random_rois(20, 2)},
    )
    cases['mmdet multiclass_nms'] = (multiclass_nms, {'boxes': random_boxes(100), 'scores': torch.rand(100, 4)})
    boxes = torch.tensor([[0.0, 0, 10, 20], [5, 5, 35, 30], [1.5, 2.5, 9, 9], [0, 0, 40, 40]])
    cases['mmdet BitmapMasks.crop_and_resize'] = (
        crop_and_resize,
        {'masks': (torch.rand(4, 40, 40) > 0.5).to(torch.uint8), 'boxes': boxes},
    )
    return cases | _refused_cases()


def _refused_cases() -> dict[str, tuple[Callable[..., Results], dict]]:
    """Calls that mmcv refuses: a shape, a dtype, a number of groups or a name that does not fit."""
    boxes, scores, maps, rois = random_boxes(9), distinct_scores(9), features(2), random_rois(9, 2)
    image, offset, mask, weight = torch.randn(1, 4, 6, 6), torch.randn(1, 18, 6, 6), torch.rand(1, 9, 6, 6), {}
    for channels in (4, 2):
        weight[channels] = torch.randn(6, channels, 3, 3)
    rest = dict(stride=1, padding=1, dilation=1)
    calls = [
        (mmcv.ops.nms, dict(boxes=boxes, scores=scores[:8], iou_threshold=0.5)),
        (mmcv.ops.nms, dict(boxes=boxes.double(), scores=scores, iou_threshold=0.5)),
        (mmcv.ops.nms, dict(boxes=boxes.long(), scores=scores.long(), iou_threshold=0.5)),
        (mmcv.ops.soft_nms, dict(boxes=boxes[:, :3], scores=scores)),
        (mmcv.ops.nms_match, dict(dets=boxes, iou_threshold=0.5)),
        (mmcv.ops.bbox_overlaps, dict(boxes=boxes, others=boxes, mode='giou')),
        (mmcv.ops.roi_align, dict(maps=maps.double(), rois=rois, output_size=3)),
        (mmcv.ops.roi_align, dict(maps=maps[0], rois=rois, size=3, scale=1.0, ratio=2, mode='max')),
        (mmcv.ops.roi_pool, dict(maps=maps, rois=rois[:, 1:], output_size=3)),
        (mmcv.ops.deform_conv2d, dict(image=image, offset=offset, weight=weight[4], **rest, groups=2)),
        (
            mmcv.ops.deform_conv2d,
            dict(image=image, offset=offset, weight=weight[4], **rest, groups=1, deform_groups=2),
        ),
        (mmcv.ops.deform_conv2d, dict(image=image, offset=offset[..., :5], weight=weight[4], **rest)),
        (
            mmcv.ops.modulated_deform_conv2d,
            dict(image=image, offset=offset, mask=mask, weight=weight[2], bias=None, **rest),
        ),
        (mmcv.ops.PSAMask, dict(psa_type='gather', mask_size=3)),
        (mmcv.ops.sigmoid_focal_loss, dict(logits=torch.randn(3, 2), target=torch.zeros(3))),
        (mmcv.ops.softmax_focal_loss, dict(logits=torch.randn(3, 2), target=torch.zeros(2).long())),
        (mmcv.ops.carafe, dict(maps=maps, masks=torch.rand(2, 9, 30, 40), kernel_size=3, groups=1, scale=2)),
    ]
    return {
        f'refused, {i}, {getattr(function, "__name__", function)}': (partial(refused, function), arguments)
        for i, (function, arguments) in enumerate(calls)
    }


# The function that makes the call and its arguments, by name of the case.
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    CASES = _make_cases()
