"""Own images that are not RGB in 8 bits: finding it out, and what it changes in a config."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from mmengine.config import Config

from ...datasets.parallel import spread
from ...errors import InputError
from ...runtime.channels import ImageKind, read_channels, read_header
from ...runtime.inputs import ARRAY_SUFFIX, IMAGE_SUFFIXES
from ..pipelines import LOAD_CHANNELS, find_dicts, image_kind, type_name
from .arguments import DataArguments
from .folders import OwnData

RGB = ImageKind(3, 'uint8')
# Files of these types are RGB in 8 bits, or are read so.
RGB_SUFFIXES = tuple(suffix for suffix in IMAGE_SUFFIXES if suffix not in ('.png', '.tif', '.tiff'))
# Channels of mean and std that mmdet's and mmseg's data preprocessors take.
HOST_CHANNELS = (1, 3)
MAX_PADDED = 4  # channels that OpenCV pads
# Training images that mean and standard deviation are measured on, at most, spread over all.
MAX_MEASURED = 1000
NUM_THREADS = 8  # which read files
CHUNK = 2**20  # pixels that are summed at a time
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

    Images are RGB in 8 bits if all files are what OpenCV reads so, some of them maybe grey or with an alpha channel.

    Args:
        config: With the datasets of the own data. Changed in place: the transforms that load images, augmentation
            that needs RGB, `data_preprocessor`, `in_channels` of the backbone.
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
    same = [index + 1 for index, value in enumerate(std) if value == 0]
    own.notes.append(
        f'images of {kind}: mean {_listed(mean)}, standard deviation {_listed(std)} of {number} training images'
    )
    if same:
        own.notes.append(f'every pixel of channel {", ".join(map(str, same))} has the same value, which says nothing')
    _set(config, own, kind, mean, [value or 1.0 for value in std])


def _kinds_of(files: Sequence[Path], strict: bool, rgb_suffixes: tuple[str, ...]) -> dict[Path, ImageKind]:
    """Channels and dtype of the files that can be read.

    Args:
        files: The files.
        strict: Whether an image of a kind that is not read is an error.
        rgb_suffixes: Types of files that need not be looked into.
    """

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

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return {file: kind for file, kind in zip(files, pool.map(read, files)) if kind is not None}


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
    """Whether there are files of NumPy, which OpenCV does not read."""
    return any(file.suffix.lower() == ARRAY_SUFFIX for file in files)


def _measure(files: Sequence[Path], kind: ImageKind, strict: bool) -> tuple[list[float], list[float], int]:
    """Mean and standard deviation of each channel over all pixels, to six digits, and the number of images.

    Args:
        files: The images, of which at most `MAX_MEASURED` are read.
        kind: Channels and dtype.
        strict: Whether an image that cannot be used is an error, and is not left out.
    """
    chosen = [files[index] for index in spread(len(files), MAX_MEASURED)]

    def sums(file: Path, shift: np.ndarray) -> tuple[int, np.ndarray, np.ndarray] | None:
        """Number of pixels, and of each channel the sum of the values less `shift`, and of their squares."""
        try:
            pixels = read_channels(file, kind).reshape(-1, kind.channels)
        except InputError:
            if strict:
                raise
            return None
        parts = (pixels[first : first + CHUNK] - shift for first in range(0, len(pixels), CHUNK))
        totals = [(part.sum(0), np.square(part).sum(0)) for part in parts]
        return len(pixels), *np.sum(totals, axis=0)

    # Without the mean of an image, squares of values that differ little would lose their digits.
    nothing = np.zeros(kind.channels)
    first = next((found for file in chosen if (found := sums(file, nothing)) is not None), None)
    if first is None:
        raise InputError(f'none of {len(chosen)} training images has {kind} and can be read, such as {chosen[0]}')
    shift = first[1] / first[0]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = [each for each in pool.map(lambda file: sums(file, shift), chosen) if each is not None]
    number, total, squares = (sum(parts) for parts in zip(*found))
    deviation = np.sqrt(np.maximum(squares / number - (total / number) ** 2, 0))
    mean, std = ([float(f'{value:.6g}') for value in values] for values in (shift + total / number, deviation))
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
    left_out: set[str] = set()
    _leave_out(config._cfg_dict, left_out)
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


def _leave_out(node: object, names: set[str]) -> None:
    """Remove the transforms of `RGB_ONLY` from all lists, and add their names."""
    if isinstance(node, list):
        kept = [each for each in node if type_name(each) not in RGB_ONLY]
        names.update(type_name(each).removeprefix('Table') for each in node if type_name(each) in RGB_ONLY)
        node[:] = kept
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ():
        _leave_out(value, names)


def _listed(values: Sequence[float]) -> str:
    return ', '.join(f'{value:g}' for value in values)
