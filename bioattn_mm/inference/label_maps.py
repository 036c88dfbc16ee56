"""Label maps of segmentors without the logits of every class in every pixel, most of what a large image takes."""

from collections.abc import Iterator, Sequence

import torch
from mmengine.structures import PixelData
from mmseg.models import BaseSegmentor, EncoderDecoder
from mmseg.structures import SegDataSample
from torch import Tensor

from ..engine.hooks import refuse_nan
from ..errors import InputError
from .images import free_memory

# Elements of the arrays that the resizing of a label map holds at a time.
CHUNK = 2**20
# Methods of mmseg that `predict_labels` stands for: a model with others of its own keeps them.
REPLACED = dict(
    predict=EncoderDecoder,
    inference=EncoderDecoder,
    whole_inference=EncoderDecoder,
    slide_inference=EncoderDecoder,
    postprocess_result=BaseSegmentor,
)


def can_predict_labels(model: object) -> bool:
    """Whether `predict_labels` predicts for a model what it predicts itself."""
    if not isinstance(model, EncoderDecoder) or model.out_channels == 1:
        return False
    return all(getattr(type(model), name) is getattr(owner, name) for name, owner in REPLACED.items())


def predict_labels(
    model: EncoderDecoder, inputs: Tensor, data_samples: Sequence[SegDataSample]
) -> list[SegDataSample]:
    """What `predict` of a segmentor does, without `seg_logits` in the result.

    mmseg resizes the logits of all classes to the size of the image, and where it slides a window it adds each one to
    all of the image. Here the logits come from the model in the size of its input, where a window slides in strips of
    its height, and the labels are computed from these.

    Args:
        model: The segmentor.
        inputs: float32 (B, 3, H, W).
        data_samples: Of the images, with mmseg's metainfo.

    Returns:
        The samples with `pred_sem_seg`.

    Raises:
        InputError: The logits do not fit into memory, or are NaN.
    """
    metas = [dict(sample.metainfo) for sample in data_samples]
    height, width = inputs.shape[2:]
    slides = model.test_cfg.mode == 'slide'
    rows = min(model.test_cfg.crop_size[0], height) if slides else height
    # The logits, those that the model or the next window adds, and a copy in another order.
    needed, free = 3 * 4 * model.out_channels * len(inputs) * rows * width, free_memory(inputs.device)
    if needed > free:
        raise InputError(
            f'the scores of {model.out_channels} classes in {width} x {rows} pixels need {needed / 2**30:.3g} GiB '
            f'and {free / 2**30:.3g} GiB are free: make it smaller{"" if slides else ", or slide a window (--slide)"}'
        )
    if slides:
        strips = _slide(model, inputs, metas)
    else:
        strips = (model.whole_inference(inputs, metas),)
        height, width = strips[0].shape[2:]
    maps = []
    for meta in metas:
        left, right, top, bottom = meta.get('img_padding_size', meta.get('padding_size', (0, 0, 0, 0)))
        inside = slice(top, height - bottom), slice(left, width - right)
        maps.append(LabelMap(inside, meta['ori_shape'], model.align_corners))
    for strip in strips:
        refuse_nan('seg_logits', strip)
        for label_map, logits in zip(maps, strip):
            label_map.add(logits)
    for sample, label_map in zip(data_samples, maps):
        sample.pred_sem_seg = PixelData(data=label_map.labels[None])
    return list(data_samples)


def _slide(model: EncoderDecoder, inputs: Tensor, metas: list[dict]) -> Iterator[Tensor]:
    """The logits of mmseg's `slide_inference`, from top to bottom, as soon as no window adds to them any more.

    Yields:
        (B, classes, rows, W).
    """
    lengths = inputs.shape[2:]
    window = [min(pair) for pair in zip(model.test_cfg.crop_size, lengths)]
    starts = []
    for length, side, stride in zip(lengths, window, model.test_cfg.stride):
        number = max(length - side + stride - 1, 0) // stride + 1
        starts.append([min(index * stride, length - side) for index in range(number)])
    # How many windows a row and a column are in.
    counts = [inputs.new_zeros(length) for length in lengths]
    for count, side, firsts in zip(counts, window, starts):
        for first in firsts:
            count[first : first + side] += 1
    total = inputs.new_zeros(len(inputs), model.out_channels, window[0], lengths[1])
    for top, following in zip(starts[0], [*starts[0][1:], lengths[0]]):
        for left in starts[1]:
            crop = inputs[:, :, top : top + window[0], left : left + window[1]]
            metas[0]['img_shape'] = crop.shape[2:]  # to which the head resizes
            total[..., left : left + window[1]] += model.encode_decode(crop, metas)
        rows = following - top
        total[:, :, :rows] /= counts[0][top:following, None] * counts[1]
        yield total[:, :, :rows]
        total = torch.cat((total[:, :, rows:], torch.zeros_like(total[:, :, :rows])), dim=2)


class LabelMap:
    """The label map of an image, from logits that come in strips from top to bottom.

    Args:
        inside: Rows and columns of the logits that are of the image, and not of its padding.
        size: (height, width) of the image.
        align_corners: Whether the logits are resized so that the corners stay where they are.

    Attributes:
        labels (Tensor | None): Index of the class with the highest logit after bilinear resizing, int64 (height,
            width); None before the first strip.
    """

    def __init__(self, inside: tuple[slice, slice], size: tuple[int, int], align_corners: bool) -> None:
        self._inside = inside
        self.labels: Tensor | None = None
        lengths = [part.stop - part.start for part in inside]
        self._axes = [_neighbours(length, own, align_corners) for length, own in zip(lengths, size)]
        self._height = lengths[0]
        self._kept: Tensor | None = None  # the last row, which those of the next strip are mixed with
        self._first = -inside[0].start  # row of the image in which the next strip begins
        self._done = 0
        self._size = size

    def add(self, logits: Tensor) -> None:
        """Take the next rows, (classes, rows, width), which begin where the last ones ended."""
        first, self._first = self._first, self._first + logits.shape[1]
        logits = logits[:, max(-first, 0) : max(self._height - first, 0), self._inside[1]]
        if not logits.shape[1]:
            return
        first = max(first, 0)
        end = first + logits.shape[1]
        if self._kept is not None:
            logits, first = torch.cat((self._kept, logits), dim=1), first - 1
        (top, down), columns = self._axes
        # The rows both of whose neighbours are there.
        done = len(top) if end == self._height else int(torch.searchsorted(top + (down > 0), end))
        rows = slice(self._done, done)
        self._done = done
        self._kept = logits[:, -1:].clone() if done < len(top) and top[done] < end else None
        if self.labels is None:
            self.labels = torch.empty(self._size, dtype=torch.int64, device=logits.device)
        self.labels[rows] = _labels(logits, (top[rows] - first, down[rows]), columns)


def _neighbours(length: int, new_length: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """For each place of a resized axis the index before it and the weight of the next one, as in `F.interpolate`."""
    place = torch.arange(new_length, dtype=torch.float64)
    if align_corners:
        place *= (length - 1) / max(new_length - 1, 1)
    else:
        place = ((place + 0.5) * (length / new_length) - 0.5).clamp(min=0)
    index = place.long().clamp(max=length - 1)
    return index, (place - index).float()


def _labels(logits: Tensor, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor]) -> Tensor:
    """Labels of (classes, h, w) at rows and columns between which bilinear interpolation is.

    Between four elements with the same highest class, that class is the highest; only elsewhere logits are computed.
    """
    number, height, width = logits.shape
    best = logits.argmax(0)
    (top, down), (left, across) = ([part.to(logits.device) for part in axis] for axis in (rows, columns))
    if height == len(top) and width == len(left) and not down.any() and not across.any():
        return best
    rows_after, columns_after = [*range(1, height), height - 1], [*range(1, width), width - 1]
    same = (best == best[rows_after]) & (best == best[:, columns_after])
    same &= best == best[rows_after][:, columns_after]
    labels = torch.empty(len(top), len(left), dtype=torch.int64, device=logits.device)
    # Element by element, so that what is read together lies together.
    flat = logits.flatten(1).T.contiguous()
    step = max(CHUNK // 2 // len(left), 1)
    for start in range(0, len(top), step):
        part = slice(start, start + step)
        labels[part] = best[top[part]][:, left]
        places = torch.nonzero(~same[top[part]][:, left])
        for y, x in (chunk.unbind(1) for chunk in places.split(CHUNK // number)):
            y = y + start
            upper, lower = top[y] * width, (top[y] + 1).clamp(max=height - 1) * width
            one, other = left[x], (left[x] + 1).clamp(max=width - 1)
            beside, below = across[x, None].to(flat.dtype), down[y, None].to(flat.dtype)
            above, under = (torch.lerp(flat[row + one], flat[row + other], beside) for row in (upper, lower))
            labels[y, x] = torch.lerp(above, under, below).argmax(1)
    return labels
