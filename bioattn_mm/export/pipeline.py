"""`pipeline.json`, which lies beside an exported model and says all that is needed to run it.

    {
      "format": "bioattn_mm/1",
      "model": "end2end.onnx",                the file beside it; the first one, if there are several
      "task": "segmentation",                 or "detection", "panoptic", "classification", "features"
      "architecture": "EncoderDecoder",       the model's type in its config, for people
      "inputs": [{"name": "input", "dtype": "float32", "shape": ["batch", 3, "height", "width"], "minimum": 64,
                  "multiple": 32}],
      "outputs": [{"name": "logits", "dtype": "float32", "shape": ["batch", 150, "rows", "columns"]}],
      "preprocessing": [                      in this order, of an image of BGR, uint8 (H, W, 3), as OpenCV reads it
        {"type": "resize", "scale": [2048, 512], "keep_ratio": true, "interpolation": "bilinear", "backend": "cv2"},
        {"type": "normalize", "mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375], "channels": "RGB"},
        {"type": "pad", "divisor": 32, "value": 0.0}
      ],
      "postprocessing": {"mode": "slide", "crop_size": [512, 512], "stride": [341, 341], "align_corners": false},
      "classes": ["wall", ...],
      "palette": [[120, 120, 120], ...]       R, G and B, 0 to 255
    }

An axis that any length is good for has a name in `shape` instead of a number. `minimum` is the smallest height and
width, `multiple` what they must be multiples of. An image of another size is padded at the bottom and right with
zeros after the normalisation, as the step `pad` does. The steps of `preprocessing`:

- `read`, of models for other images than RGB in 8 bits: PNG, TIFF and .npy files have so many `channels`, which are
  also in `shape`, and this `dtype`, "uint8", "uint16" or "float32". In place of BGR, uint8 (H, W, 3), the image is
  (H, W, channels), in the order of the file; uint16 becomes float32 before all else.
- `resize`: `scale` is [long, short] with `keep_ratio`: the image is scaled by the largest factor with which neither
  side is longer, and its sides are `int(side * factor + 0.5)`; without it, [width, height].
- `resize_edge`: the `edge`, "short", "long", "width" or "height", becomes `size`.
  OpenCV resizes, here as above, or, where `backend` is "pillow", Pillow, which gives other pixels.
- `center_crop`: `size` is [height, width].
- `normalize`: `(image - mean) / std`, the channels first put into the order `channels`, "RGB" or "BGR"; "as read"
  after a step `read`.
- `pad`: at the bottom and right, after the normalisation, to multiples of `divisor`; of what comes out, that part is
  cut off.

What comes out, by task, B being the batch:

- segmentation: `logits`, (B, classes, h, w), of the size of the head, not of the image: resize them bilinearly (with
  `align_corners`) to the input before the argmax. With `"channels": 1` there is a sigmoid and a `threshold` in the
  place of the argmax. `mode` is "whole", or "slide" with windows of `crop_size` [height, width] every `stride`
  pixels, whose logits are averaged where they overlap. A model of one size has windows of that size, and the stride
  in proportion.
- detection: `boxes`, (B, N, 4), x1, y1, x2, y2 in pixels of the input, `scores`, (B, N), best first, and `labels`,
  int64 (B, N); with masks `masks`, (B, N, 28, 28), probabilities in the box. Entries of score 0 are padding.
- panoptic: `class_logits`, (B, queries, classes + 1), and `mask_logits`, (B, queries, h, w).
- classification: `logits`, (B, classes).
- features: `stage0`, `stage1`, ..., (B, channels, h, w), or (B, channels).
"""

import json
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config

from ..errors import InputError
from ..runtime.model import FILE, FORMAT
from ..runtime.preprocessing import READ
from ..training.config.pipelines import LOAD_CHANNELS, data_preprocessor_of, image_kind, type_name

# Steps of a test pipeline that a single image without annotations passes unchanged.
NO_CHANGE = ('Load', 'CheckedLoad', 'Pack')


def preprocessing_of(config: Config) -> list[dict]:
    """The steps from an image to the model's input, of the test pipeline and the data preprocessor of a config.

    Raises:
        InputError: The test pipeline has a step that is none of those of `pipeline.json`.
    """
    steps = [step for transform in config.test_dataloader.dataset.pipeline for step in _step_of(transform)]
    preprocessor = data_preprocessor_of(config)
    is_rgb = any(preprocessor.get(name) for name in ('bgr_to_rgb', 'rgb_to_bgr', 'to_rgb'))  # all swap channels
    if preprocessor.get('mean') is not None or is_rgb:
        # The upstream libraries change the order of the channels also where there is no mean and std; 0 and 1 leave
        # the values as they are.
        defaults = dict(mean=[0.0] * 3, std=[1.0] * 3)
        numbers = {name: [float(value) for value in preprocessor.get(name) or own] for name, own in defaults.items()}
        order = 'as read' if image_kind(config) else 'RGB' if is_rgb else 'BGR'
        steps.append(dict(type='normalize', **numbers, channels=order))
    test_cfg = preprocessor.get('test_cfg') or {}
    if test_cfg.get('size'):
        raise InputError(
            'the data preprocessor pads images to a size (test_cfg.size), which pipeline.json cannot describe: take '
            'size_divisor'
        )
    divisor = preprocessor.get('pad_size_divisor') or test_cfg.get('size_divisor') or 1
    if divisor > 1:
        value = preprocessor.get('pad_value', preprocessor.get('pad_val', 0))
        steps.append(dict(type='pad', divisor=divisor, value=float(value)))
    return steps


def _step_of(transform: dict) -> list[dict]:
    """A step of a test pipeline as `pipeline.json` has it; none for one that changes nothing."""
    kind = type_name(transform)
    method = dict(interpolation=transform.get('interpolation', 'bilinear'), backend=transform.get('backend', 'cv2'))
    if kind == 'Resize' and isinstance(transform.get('scale'), Sequence):
        scale, keep_ratio = [int(side) for side in transform['scale']], transform.get('keep_ratio', False)
        if keep_ratio:
            scale = [max(scale), min(scale)]
        return [dict(type='resize', scale=scale, keep_ratio=keep_ratio, **method)]
    if kind == 'ResizeEdge':
        edge = transform.get('edge', 'short')
        return [dict(type='resize_edge', edge=edge, size=transform['scale'], **method)]
    if kind == 'CenterCrop' and not transform.get('auto_pad'):
        size = transform['crop_size']  # (width, height)
        return [dict(type='center_crop', size=[size, size] if isinstance(size, int) else [*size[::-1]])]
    if transform['type'] == LOAD_CHANNELS:
        return [dict(type=READ, channels=transform['channels'], dtype=transform['dtype'])]
    # The runtime reads BGR in 8 bits, turned by EXIF data.
    reads_otherwise = kind.endswith('LoadImageFromFile') and (
        transform.get('color_type', 'color') != 'color' or transform.get('imdecode_backend') == 'tifffile'
    )
    if kind.startswith(NO_CHANGE) and not reads_otherwise:
        return []
    raise InputError(f'the test pipeline has a step {kind}, which pipeline.json cannot describe: {dict(transform)}')


def postprocessing_of(config: Config, task: str) -> dict:
    """What the runtime does with the outputs: the parts of `model.test_cfg` and of the head that it needs."""
    test_cfg = config.model.get('test_cfg') or {}
    if task == 'segmentation':
        head = config.model.decode_head
        head = head[-1] if isinstance(head, (list, tuple)) else head
        found = dict(mode=test_cfg.get('mode', 'whole'), align_corners=head.get('align_corners', False))
        if found['mode'] == 'slide':
            found.update({name: list(test_cfg[name]) for name in ('crop_size', 'stride')})
        if (head.get('out_channels') or head.get('num_classes')) == 1:
            threshold = head.get('threshold')
            found.update(channels=1, threshold=0.3 if threshold is None else threshold)
        return found
    if task == 'detection':
        last = test_cfg.get('rcnn', test_cfg)
        found = {name: last[name] for name in ('score_thr', 'mask_thr_binary') if name in last}
        return dict(found, max_per_img=last.get('max_per_img', 100))
    if task == 'panoptic':
        fusion = config.model.panoptic_fusion_head
        names = ('panoptic_on', 'instance_on', 'max_per_image', 'iou_thr', 'filter_low_score', 'object_mask_thr')
        found = {name: test_cfg[name] for name in names if name in test_cfg}
        return dict(found, num_things=fusion.num_things_classes, num_stuff=fusion.num_stuff_classes)
    return {}


def description_of(
    config: Config, task: str, architecture: str, classes: Sequence[str], palette: Sequence[tuple[int, int, int]]
) -> dict:
    """What `pipeline.json` says of a model besides its file.

    The config has the mode in which a segmentor takes images; `task` and `architecture` are as in the file.

    Raises:
        InputError: Its test pipeline has a step that is none of those of `pipeline.json`.
    """
    return dict(
        task=task,
        architecture=architecture,
        preprocessing=preprocessing_of(config),
        postprocessing=postprocessing_of(config, task),
        classes=list(classes),
        palette=[list(colour) for colour in palette],
    )


def write_pipeline(folder: Path, document: dict) -> Path:
    """Write `pipeline.json`."""
    path = folder / FILE
    path.write_text(json.dumps(dict(format=FORMAT, **document), indent=1) + '\n', encoding='utf-8')
    return path
