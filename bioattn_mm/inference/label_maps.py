"""Label maps of segmentors without the logits of every class in every pixel, most of what a large image takes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from mmengine.structures import PixelData
from mmseg.models import BaseSegmentor
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from ..training.bad_data import refuse_nan


@contextmanager
def labels_alone(model: nn.Module) -> Iterator[None]:
    """Context in which a segmentor of mmseg predicts label maps without `seg_logits`.

    mmseg resizes the logits of all classes to the size of the image. Here one class after the other is resized, and
    the highest logit of each pixel is kept. Models of one output channel, and those with a `postprocess_result` of
    their own, stay as they are.
    """
    if getattr(model, 'out_channels', 1) > 1 and type(model).postprocess_result is BaseSegmentor.postprocess_result:
        model.postprocess_result = partial(_postprocess, model.align_corners)
    try:
        yield
    finally:
        vars(model).pop('postprocess_result', None)


def _postprocess(
    align_corners: bool, seg_logits: Tensor, data_samples: Sequence[SegDataSample]
) -> list[SegDataSample]:
    """mmseg's `postprocess_result`: (B, classes, H, W) to `pred_sem_seg` of each sample, int64 (1, height, width)."""
    refuse_nan('seg_logits', seg_logits)
    for logits, sample in zip(seg_logits, data_samples):
        meta, (height, width) = sample.metainfo, logits.shape[1:]
        left, right, top, bottom = meta.get('img_padding_size', meta.get('padding_size', (0, 0, 0, 0)))
        logits = logits[:, top : height - bottom, left : width - right]
        highest = logits.new_full(meta['ori_shape'], -torch.inf)
        labels = torch.zeros(meta['ori_shape'], dtype=torch.int64, device=logits.device)
        for index, one in enumerate(logits):
            resized = F.interpolate(one[None, None], labels.shape, mode='bilinear', align_corners=align_corners)[0, 0]
            labels.masked_fill_(resized > highest, index)
            torch.maximum(highest, resized, out=highest)
        sample.pred_sem_seg = PixelData(data=labels[None])
    return list(data_samples)
