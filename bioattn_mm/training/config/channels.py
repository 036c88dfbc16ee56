"""Own images that are not RGB in 8 bits: finding it out, and what it changes in a config."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mmengine.config import Config

from ...data.formats.arguments import DataArguments
from ...data.formats.folders import OwnData
from ...data.image_files import in_threads, spread
from ...errors import InputError
from ...runtime.images import ImageKind, read_header, read_image
from ...runtime.paths import ARRAY_SUFFIX, IMAGE_SUFFIXES
from .pipelines import LOAD_CHANNELS, find_dicts, find_lists, image_kind, type_name

RGB = ImageKind(3, 'uint8')
# Files of these types are RGB in 8 bits, or are read so.
RGB_SUFFIXES = tuple(suffix for suffix in IMAGE_SUFFIXES if suffix not in ('.png', '.tif', '.tiff'))
# Channels of mean and std that mmdet's and mmseg's data preprocessors take.
HOST_CHANNELS = (1, 3)
MAX_PADDED = 4  # channels that OpenCV pads
# Training images that mean and standard deviation are measured on, at most, spread over all.
MAX_MEASURED = 1000
CHUNK = 2**20  # pixels that are measured at a time
# Transforms of the upstream libraries and this package that compute with colours, or make images of three channels.
RGB_ONLY = {
    'AdjustGamma', 'Albu', 'Albumentations', 'AutoAugment', 'AutoContrast', 'BioMedicalGaussianBlur',
    'Brightness', 'CachedMixUp', 'CachedMosaic', 'CLAHE', 'Color', 'ColorJitter', 'ColorTransform', 'Contrast',
    'Corrupt', 'Corruption', 'Equalize', 'GaussianBlur', 'Invert', 'Lighting', 'MixUp', 'Mosaic',
    'PhotoMetricDistortion', 'Posterize', 'RandAugment', 'RandomErasing', 'RandomGrayscale', 'RandomMosaic',
    'RGB2Gray', 'Sharpness', 'Solarize', 'SolarizeAdd', 'TablePhotoMetricDistortion', 'YOLOXHSVRandomAug',
}  # fmt: skip


def use_channels(config: Config, own: OwnData, arguments: DataArguments) -> None:
    """Let a config load, normalise and augment own images as they are, if they are not RGB in 8 bits.

    Images are RGB in 8 bits if OpenCV reads all files so, some of them maybe grey or with an alpha channel.

    Args:
        config: With the datasets of the own data. The transforms that load images, augmentation that needs RGB,
            `data_preprocessor` and `in_channels` of the backbone change.
        own: The data; what was done is added to its notes.
        arguments: The command line. With `problems`, files that cannot be used are left to what loads them.

    Raises:
        InputError: Images differ in channels or dtype, from each other or from what the config loads, or cannot be
            read; or there are no training images to measure mean and standard deviation on.
    """
    known = image_kind(config)
    if arguments.as_rgb:
        if known is not None:
            raise InputError(
                f'--as-rgb: {config.filename} is of a model of {known}: name the config that it came from'
            )
        return
    files = list(dict.fromkeys(file for split in own.files.values() for file in split))
    strict = arguments.problems is None
    kinds = _kinds_of(files, strict, RGB_SUFFIXES if known is None else ())
    kind = known or _common_kind(kinds)
    if kind is None:
        return
    other = next((file for file, found in kinds.items() if found != kind), None)
    if other is not None and strict:
        of_all = (
            f'{config.filename} takes' if known else f'{Counter(kinds.values())[kind]} of {len(kinds)} images have'
        )
        raise InputError(f'{other} has {kinds[other]}, {of_all} {kind}: expected the same of all images')
    if known is not None:
        own.notes.append(f'images of {kind}, with the mean and standard deviation of the config')
        return
    if 'train' not in own.files:
        raise InputError(
            f'no training images of {kind} to measure mean and standard deviation on: name the config that the '
            'training wrote into its work dir, or the training images with --train-data'
        )
    mean, std, number = _measure(own.files['train'], kind, strict)
    if kind == ImageKind(4, 'uint8') and (mean[3], std[3]) == (255, 0) and not _has_arrays(kinds):
        own.notes.append('images of RGB, with an alpha channel that is opaque everywhere and is left out')
        return
    means, deviations = (', '.join(f'{value:g}' for value in values) for values in (mean, std))
    own.notes.append(f'images of {kind}: mean {means}, standard deviation {deviations} of {number} training images')
    if same := ', '.join(str(index) for index, value in enumerate(std, 1) if value == 0):
        own.notes.append(f'every pixel of channel {same} has the same value, which says nothing')
    _set(config, own, kind, mean, [value or 1.0 for value in std])


def _kinds_of(files: Sequence[Path], strict: bool, rgb_suffixes: tuple[str, ...]) -> dict[Path, ImageKind]:
    """Channels and dtype of the files that can be read; if `strict`, one of a kind that is not read is an error."""

    def read(file: Path) -> ImageKind | None:
        if file.suffix.lower() in rgb_suffixes:
            return RGB
        try:
            return read_header(file).kind
        except InputError:
            if strict:
                raise
        except Exception:  # a file that is missing or damaged is named when it is loaded
            pass
        return None

    return {file: kind for file, kind in zip(files, in_threads(read, files)) if kind is not None}


def _common_kind(kinds: dict[Path, ImageKind]) -> ImageKind | None:
    """What most images are; None if they are RGB in 8 bits, or no file could be read."""
    counts = Counter(kinds.values())
    if not counts:
        return None
    in_8_bits = all(kind.dtype == 'uint8' and kind.channels <= 4 for kind in counts)
    if in_8_bits and (len(counts) > 1 or RGB in counts) and not _has_arrays(kinds):
        return None
    return counts.most_common(1)[0][0]


def _has_arrays(files: dict[Path, ImageKind]) -> bool:
    return any(file.suffix.lower() == ARRAY_SUFFIX for file in files)


def _measure(files: Sequence[Path], kind: ImageKind, strict: bool) -> tuple[list[float], list[float], int]:
    """Mean and standard deviation of each channel over all pixels, to six digits, and the number of images."""
    chosen = [files[index] for index in spread(len(files), MAX_MEASURED)]

    def moments(file: Path) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Number of pixels, mean and variance of each channel in parts of an image."""
        try:
            pixels = read_image(file, kind).reshape(-1, kind.channels)
        except InputError:
            if strict:
                raise
            return []
        parts = (pixels[first : first + CHUNK] for first in range(0, len(pixels), CHUNK))
        return [(len(part), part.mean(0, np.float64), part.var(0, np.float64)) for part in parts]

    found = list(filter(None, in_threads(moments, chosen)))
    if not found:
        raise InputError(f'none of {len(chosen)} training images has {kind} and can be read, such as {chosen[0]}')
    numbers, means, variances = map(np.array, zip(*itertools.chain.from_iterable(found)))
    mean = np.average(means, 0, numbers)
    deviation = np.sqrt(np.average(variances + np.square(means - mean), 0, numbers))
    mean, std = ([float(f'{value:.6g}') for value in values] for values in (mean, deviation))
    return mean, std, len(found)


def _set(config: Config, own: OwnData, kind: ImageKind, mean: list[float], std: list[float]) -> None:
    for step in list(find_dicts(config)):
        name = type_name(step)
        if name.endswith('LoadImageFromFile'):
            kept = {key: step[key] for key in ('backend_args',) if key in step}
            step.clear()
            step.update(type=LOAD_CHANNELS, channels=kind.channels, dtype=kind.dtype, **kept)
        elif name == 'Pad':
            if kind.channels > MAX_PADDED:
                raise InputError(
                    f'{config.filename} has a step Pad, and OpenCV pads images of at most {MAX_PADDED} channels: '
                    'leave it out, the data preprocessor pads, too'
                )
            step.pad_val = {**(step.pad_val if isinstance(step.get('pad_val'), dict) else {}), 'img': 0}
        if step.get('backend') == 'pillow':  # which resizes images in 8 bits alone
            step.backend = 'cv2'
    left_out = set()
    for steps in list(find_lists(config)):
        left_out |= {type_name(step).removeprefix('Table') for step in steps if type_name(step) in RGB_ONLY}
        steps[:] = [step for step in steps if type_name(step) not in RGB_ONLY]
    if left_out:
        own.notes.append(f'augmentation that needs RGB in 8 bits is left out: {", ".join(sorted(left_out))}')
    for preprocessor in filter(None, (config.get('data_preprocessor'), config.model.get('data_preprocessor'))):
        preprocessor.update(mean=mean, std=std)
        if config.default_scope == 'mmpretrain':  # whose own takes any number of channels
            preprocessor.to_rgb = False
            continue
        if kind.channels not in HOST_CHANNELS:
            preprocessor.update(type='bioattn_mm.multichannel_preprocessor', host=preprocessor.type)
        preprocessor.update(bgr_to_rgb=False, rgb_to_bgr=False)
    if kind.channels != RGB.channels:
        config.model.backbone.in_channels = kind.channels
    hook = config.get('default_hooks', {}).get('visualization')
    if hook:
        hook.update(type='bioattn_mm.ChannelsVisualizationHook', host=hook.type, kind=vars(kind))
