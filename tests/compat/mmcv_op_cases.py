"""Calls of mmcv.ops to compare the functions of bioattn_mm.compat with mmcv's compiled ops."""

from collections.abc import Callable
from itertools import product

import mmcv.ops
import torch
from torch import Tensor

Results = dict[str, Tensor]


def nms(boxes: Tensor, scores: Tensor, **options) -> Results:
    dets, kept = mmcv.ops.nms(boxes, scores, **options)
    return {'dets': dets, 'kept': kept}


def batched_nms(boxes: Tensor, scores: Tensor, classes: Tensor, nms_cfg: dict) -> Results:
    dets, kept = mmcv.ops.batched_nms(boxes, scores, classes, nms_cfg)
    return {'dets': dets, 'kept': kept}


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
    cases['mmdet multiclass_nms'] = (
        multiclass_nms,
        {'boxes': random_boxes(100), 'scores': torch.rand(100, 4)},
    )
    boxes = torch.tensor([[0.0, 0, 10, 20], [5, 5, 35, 30], [1.5, 2.5, 9, 9], [0, 0, 40, 40]])
    cases['mmdet BitmapMasks.crop_and_resize'] = (
        crop_and_resize,
        {'masks': (torch.rand(4, 40, 40) > 0.5).to(torch.uint8), 'boxes': boxes},
    )
    return cases


# The function that makes the call and its arguments, by name of the case.
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    CASES = _make_cases()
