"""Layers of mmcv and mmpretrain, and the postprocessing of mmdet's two-stage detectors with the results of mmdet.

mmdeploy's own rewriters of the latter are faster but give other results: they suppress proposals across pyramid
levels, and give all classes of a proposal the box of its best class.
"""

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import AdaptivePadding
from mmdeploy.core import FUNCTION_REWRITER, SYMBOLIC_REWRITER
from mmdeploy.mmcv.ops.nms import ONNXNMSop
from mmdet.models.dense_heads import RPNHead
from mmdet.models.roi_heads.bbox_heads import BBoxHead
from mmengine.config import ConfigDict
from torch import Tensor, nn
from torch.onnx import TensorProtoDataType
from torchvision.ops import boxes as box_ops

from .sizes import Grid, Length, from_sizes

PADDING = 'mmcv.cnn.bricks.transformer.AdaptivePadding.forward'
WINDOWS = 'mmpretrain.models.utils.ShiftWindowMSA.forward'
# TensorRT is left out: mmdeploy has its own operators for it.
RPN_HEAD = 'mmdet.models.dense_heads.rpn_head.RPNHead.predict_by_feat'
BBOX_HEAD = 'mmdet.models.roi_heads.bbox_heads.bbox_head.BBoxHead.predict_by_feat'


@FUNCTION_REWRITER.register_rewriter(PADDING)
def adaptive_padding__forward(self: AdaptivePadding, x: Tensor) -> Tensor:
    """mmcv's padding before a convolution; the original decides in Python, at export, whether to pad."""
    if self.padding != 'corner' or self.kernel_size != self.stride or self.dilation != (1, 1):
        return FUNCTION_REWRITER.get_context(PADDING).origin_func(self, x)
    bottom, right = (-length % stride for length, stride in zip(x.shape[-2:], self.stride))
    return F.pad(x, (0, right, 0, bottom))


@SYMBOLIC_REWRITER.register_symbolic('mmcv.ops.roi_align.__self__', backend='onnxruntime')
def roi_align__standard(g, input, rois, output_size, spatial_scale, sampling_ratio, pool_mode, aligned):
    """ONNX's RoiAlign, which equals mmcv's from opset 16; mmdeploy's calls a function that PyTorch has removed."""

    def columns(*indices):
        return g.op('Gather', rois, g.op('Constant', value_t=torch.tensor(indices)), axis_i=1)

    image = g.op('Squeeze', columns(0), g.op('Constant', value_t=torch.tensor([1])))
    return g.op(
        'RoiAlign',
        input,
        columns(1, 2, 3, 4),
        g.op('Cast', image, to_i=TensorProtoDataType.INT64),
        output_height_i=output_size[0],
        output_width_i=output_size[1],
        spatial_scale_f=spatial_scale,
        sampling_ratio_i=sampling_ratio,
        mode_s=pool_mode,
        coordinate_transformation_mode_s='half_pixel' if aligned else 'output_half_pixel',
    )


@FUNCTION_REWRITER.register_rewriter(WINDOWS)
def shift_window_msa__forward(self: nn.Module, query: Tensor, hw_shape: Grid) -> Tensor:
    """mmpretrain's shifted windows: (B, H * W, C) to the same shape; the feature map is padded to whole windows.

    mmdeploy's own rewriters for them are not used: after an export they leave the static method `get_attn_mask` as a
    plain function, and the model no longer runs in PyTorch.
    """
    context = FUNCTION_REWRITER.get_context(WINDOWS)
    if not self.pad_small_map:
        return context.origin_func(self, query, hw_shape)
    size, shift = self.window_size, self.shift_size
    batch, channels = query.shape[0], self.w_msa.embed_dims
    height, width = hw_shape
    with from_sizes(context.cfg):
        bottom, right = -height % size, -width % size
        grid = height + bottom, width + right
        mask = shift_mask(grid, size, shift, query.dtype) if shift else None

    x = F.pad(query.reshape(batch, height, width, channels), (0, 0, 0, right, 0, bottom))
    if shift:
        x = torch.roll(x, shifts=(-shift, -shift), dims=(1, 2))
    x = self.w_msa(to_windows(x, batch, grid, size).reshape(-1, size * size, channels), mask=mask)
    x = x.reshape(batch, grid[0] // size, grid[1] // size, size, size, channels).transpose(2, 3)
    x = x.reshape(batch, *grid, channels)
    if shift:
        x = torch.roll(x, shifts=(shift, shift), dims=(1, 2))
    return self.drop(x[:, :height, :width].reshape(batch, height * width, channels))


def to_windows(x: Tensor, batch: Length, grid: Grid, size: int) -> Tensor:
    """(B, H, W, ...) to (B, H / size, W / size, size, size, -1)."""
    return x.reshape(batch, grid[0] // size, size, grid[1] // size, size, -1).transpose(2, 3)


def shift_mask(grid: Grid, size: int, shift: int, dtype: torch.dtype) -> Tensor:
    """-100 between tokens of a window from opposite ends of the feature map, otherwise 0: (windows, N, N)."""
    rows, columns = (
        (position >= length - size).to(dtype) + (position >= length - shift).to(dtype)
        for position, length in ((torch.arange(length), length) for length in grid)
    )
    region = to_windows(3 * rows[:, None] + columns, 1, grid, size).reshape(-1, size * size)
    return -100 * (region[:, None] != region[:, :, None]).to(dtype)


@FUNCTION_REWRITER.register_rewriter(RPN_HEAD, backend='onnxruntime')
@FUNCTION_REWRITER.register_rewriter(RPN_HEAD, backend='torchscript')
def rpn_head__predict_by_feat(
    self: RPNHead,
    cls_scores: list[Tensor],
    bbox_preds: list[Tensor],
    score_factors: None = None,
    batch_img_metas: list[dict] | None = None,
    cfg: ConfigDict | None = None,
    rescale: bool = False,
    with_nms: bool = True,
) -> tuple[Tensor, Tensor]:
    """Proposals of one image with scores, best first, (1, N, 5), and zeros in place of classes, (1, N)."""
    if not self.use_sigmoid_cls or not with_nms:
        raise NotImplementedError('export of an RPN head with softmax, or without non-maximum suppression')
    cfg = self.test_cfg if cfg is None else cfg
    anchors_of_levels = self.anchor_generator.grid_anchors(
        [scores.shape[-2:] for scores in cls_scores], device=cls_scores[0].device
    )
    boxes_of_levels, scores_of_levels = [], []
    for scores, deltas, anchors in zip(cls_scores, bbox_preds, anchors_of_levels):
        scores = scores.permute(0, 2, 3, 1).reshape(-1).sigmoid()
        deltas = deltas.permute(0, 2, 3, 1).reshape(-1, 4)
        if cfg.nms_pre > 0:
            scores, index = scores.topk(cfg.nms_pre)
            deltas, anchors = deltas[index], anchors[index]
        boxes = self.bbox_coder.decode(anchors[None], deltas[None], max_shape=batch_img_metas[0]['img_shape'])
        # `suppress` drops boxes with score 0: those that are too small.
        size = boxes[0, :, 2:] - boxes[0, :, :2]
        scores = scores * (size > cfg.get('min_bbox_size', -1)).all(-1)
        keep = suppress(boxes, scores[None, None], cfg.nms, 0.0, cfg.max_per_img)[:, 2]
        boxes_of_levels.append(boxes[0, keep])
        scores_of_levels.append(scores[keep])
    boxes, scores = torch.cat(boxes_of_levels), torch.cat(scores_of_levels)
    return best(boxes, scores, torch.zeros_like(scores, dtype=torch.long), cfg.max_per_img)


@FUNCTION_REWRITER.register_rewriter(BBOX_HEAD, backend='onnxruntime')
@FUNCTION_REWRITER.register_rewriter(BBOX_HEAD, backend='torchscript')
def bbox_head__predict_by_feat(
    self: BBoxHead,
    rois: Tensor,
    cls_scores: Tensor,
    bbox_preds: Tensor,
    batch_img_metas: list[dict],
    rcnn_test_cfg: ConfigDict,
    rescale: bool = False,
) -> tuple[Tensor, Tensor]:
    """The detections of one image: boxes with scores, (1, D, 5), best first, and classes, (1, D).

    `rois` are (1, N, 5), as (index of the image, x1, y1, x2, y2), `cls_scores` logits (1, N, classes + 1),
    `bbox_preds` (1, N, 4) or (1, N, 4 * classes).
    """
    # Proposals without area only pad the list.
    size = rois[0, :, 3:] - rois[0, :, 1:3]
    scores = cls_scores[0].softmax(-1)[:, :-1] * (size > 0).all(-1)[:, None]
    boxes = self.bbox_coder.decode(rois[..., 1:], bbox_preds, max_shape=batch_img_metas[0]['img_shape'])
    boxes = boxes.reshape(-1, bbox_preds.shape[-1] // 4, 4)
    boxes = (boxes.expand(-1, self.num_classes, 4) if self.reg_class_agnostic else boxes).transpose(0, 1)
    # ONNX's operator has the same boxes for all classes of an image, so that each class is passed as an image.
    scores = scores.T
    classes, _, index = suppress(
        boxes, scores[:, None], rcnn_test_cfg.nms, rcnn_test_cfg.score_thr, rcnn_test_cfg.max_per_img
    ).unbind(-1)
    return best(boxes[classes, index], scores[classes, index], classes, rcnn_test_cfg.max_per_img)


def suppress(boxes: Tensor, scores: Tensor, nms: ConfigDict, score_threshold: float, limit: int) -> Tensor:
    """Non-maximum suppression as ONNX defines it.

    Args:
        boxes: (B, N, 4), as (x1, y1, x2, y2).
        scores: (B, classes, N).
        nms: Config with `type` and `iou_threshold`.
        score_threshold: Boxes with at most this score are dropped.
        limit: Maximum number of boxes for each class.

    Returns:
        Index in the batch, class and index of the box for each kept box, int64 (K, 3).
    """
    if nms.get('type', 'nms') != 'nms':
        raise NotImplementedError(f'export of non-maximum suppression of the type {nms.type}')
    if torch.onnx.is_in_onnx_export():
        thresholds = torch.tensor([nms.iou_threshold]), torch.tensor([score_threshold])
        return ONNXNMSop.apply(boxes, scores, limit, *thresholds)
    # TorchScript gets torchvision's operator, which takes one image and class.
    kept = []
    for image in range(boxes.shape[0]):
        for label in range(scores.shape[1]):
            own_scores = scores[image, label]
            index = box_ops.nms(boxes[image], own_scores, nms.iou_threshold)[:limit]
            index = index[own_scores[index] > score_threshold]
            kept.append(torch.stack([torch.full_like(index, image), torch.full_like(index, label), index], dim=-1))
    return torch.cat(kept)


def best(boxes: Tensor, scores: Tensor, labels: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """At most `limit` boxes with the highest scores, (1, N, 5), and their labels, (1, N).

    If there are fewer, a box without area and with score 0 is added: what follows in the graph needs at least one.
    """
    detections = torch.cat([torch.cat([boxes, scores[:, None]], dim=-1), boxes.new_zeros(1, 5)])
    labels = torch.cat([labels, labels.new_zeros(1)])
    _, index = detections[:, 4].topk(limit)
    return detections[index][None], labels[index][None]
