#!/usr/bin/env python
"""The data loader alone: images a second of one core, where the time goes, and mmdet's and mmseg's own beside it.

The images are made up: JPEGs of COCO's 640 x 480 and ADE20K's 683 x 512 pixels with texture of all scales, about as
large as the real files. Those of COCO have 7.3 objects on average, outlines of 8 to 60 points, of COCO's sizes;
those of ADE20K label maps of a dozen classes. Both pipelines read the same files and draw the same random numbers.

A row is milliseconds of the processor for an image. Sending is what a worker needs beyond the transforms: collating,
and copying to where the training process sees it; receiving is what the training process needs.
"""

import argparse
import functools
import json
import re
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

import cv2
import numpy as np
import torch
from measure import print_header, print_row
from mmengine import fileio
from mmengine.config import Config
from mmengine.dataset import BaseDataset, pseudo_collate
from mmengine.registry import DATASETS, DefaultScope
from torch.utils.data import DataLoader

from bioattn_mm.data.mini.coco import CATEGORIES
from bioattn_mm.data.samplers import seed_everything
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import find_datasets

RECIPES = {
    'COCO, Mask R-CNN': 'configs/transnext/mask_rcnn_tiny_coco.py',
    'COCO, Mask2Former, jitter': 'configs/transnext/mask2former_tiny_coco.py',
    'COCO, DINO': 'configs/transnext/dino_4scale_tiny_coco.py',
    'ADE20K, UperNet': 'configs/transnext/upernet_tiny_ade20k.py',
}
PARTS = ('reading', 'decoding', 'annotations', 'resizing', 'flip and crop', 'colours', 'packing')
# The part that a transform belongs to, by a part of its name.
PART_OF = {
    'LoadImage': 'decoding',
    'Annotations': 'annotations',
    'Resize': 'resizing',
    'RandomChoice': 'resizing',
    'Flip': 'flip and crop',
    'Crop': 'flip and crop',
    'PhotoMetric': 'colours',
    'Pack': 'packing',
    'ChannelsFirst': 'packing',
}
QUALITY = 95
SIZES = dict(coco=(480, 640), ade=(512, 683))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--images', type=int, default=48, help='images of each data set (default: %(default)s)')
    parser.add_argument('--recipes', nargs='+', metavar='WORD', default=[''], help='those whose name has the word')
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    with tempfile.TemporaryDirectory(prefix='loader_') as name:
        folder = Path(name)
        roots = dict(coco=folder / 'coco', ade=folder / 'ade')
        make_coco(roots['coco'], args.images)
        make_ade20k(roots['ade'], args.images)
        print_header('', '', *PARTS, 'sending', 'worker', 'receiving', 'images a second of a core', 'ratio')
        for recipe, path in RECIPES.items():
            if any(word in recipe for word in args.recipes):
                compare(recipe, path, roots['ade' if 'ade20k' in path else 'coco'], args.images)


def compare(recipe: str, path: str, root: Path, number: int) -> None:
    """Print the rows of a recipe, with the upstream transforms and with ours."""
    host, ours = with_host_transforms(Config.fromfile(path)), load_config(path)
    if 'jitter' in recipe:  # as mmdet's config of Mask2Former has it
        host.train_dataloader.dataset.pipeline[0].to_float32 = True
    seconds = {}
    for name, config in (('mmdet' if host.default_scope == 'mmdet' else 'mmseg', host), ('bioattn_mm', ours)):
        with DefaultScope.overwrite_default_scope(config.default_scope):
            dataset = build(config, root)
            parts = time_parts(dataset)
            worker, receiving = time_loading(dataset, number)
        sending = worker - sum(parts.values())
        seconds[name] = worker
        cells = [f'{1e3 * part:.2f}' for part in (*(parts[part] for part in PARTS), sending, worker, receiving)]
        ratio = f'{next(iter(seconds.values())) / worker:.2f}x' if len(seconds) > 1 else ''
        print_row(recipe, name, *cells, f'{1 / worker:.0f}', ratio)


def with_host_transforms(config: Config) -> Config:
    """The config with the transforms of the upstream library in its training pipeline. Changed in place."""
    for dataset in find_datasets(config.train_dataloader):
        dataset.pipeline = [step for step in dataset.pipeline if step.type != 'bioattn_mm.ChannelsFirst']
        for step in dataset.pipeline:
            step.type = re.sub(r'^bioattn_mm\.(Checked|InOrder|Counted|Table)', '', step.type)
    return config


def build(config: Config, root: Path) -> BaseDataset:
    """The training dataset of a config with the images of a folder."""
    dataset = next(find_datasets(config.train_dataloader))
    dataset.data_root = str(root)
    built = DATASETS.build(dataset)
    built.full_init()
    return built


def time_parts(dataset: BaseDataset, repeats: int = 3) -> dict[str, float]:
    """Seconds of the processor for each of `PARTS`, means over the images, of the fastest of some passes."""
    passes = []
    for _ in range(repeats):
        spent = defaultdict(float)
        with timed(spent):
            for index in range(len(dataset)):
                seed_everything(0, index)
                sample = dataset.get_data_info(index)
                for transform in dataset.pipeline.transforms:
                    name = type(transform).__name__
                    part = next(part for word, part in PART_OF.items() if word in name)
                    start, read = time.process_time(), spent['reading']
                    sample = transform(sample)
                    spent[part] += time.process_time() - start - (spent['reading'] - read)
        passes.append({part: spent[part] / len(dataset) for part in PARTS})
    return min(passes, key=lambda each: sum(each.values()))


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Add up the time for reading files."""
    get = fileio.get

    @functools.wraps(get)
    def timed_get(*args: object, **kwargs: object) -> bytes:
        start = time.process_time()
        content = get(*args, **kwargs)
        spent['reading'] += time.process_time() - start
        return content

    import mmcv.transforms.loading as mmcv_loading

    fileio.get = mmcv_loading.fileio.get = timed_get
    try:
        yield
    finally:
        fileio.get = mmcv_loading.fileio.get = get


class Repeated(torch.utils.data.Dataset):
    """A dataset over and over, with the random numbers of the first pass."""

    def __init__(self, dataset: BaseDataset, length: int) -> None:
        self.dataset, self.length = dataset, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict:
        index %= len(self.dataset)
        seed_everything(0, index)
        return self.dataset[index]


def time_loading(dataset: BaseDataset, number: int) -> tuple[float, float]:
    """Seconds of the processor for an image in one worker, and in the process that receives it.

    The difference of a long and a short pass, so that starting the worker does not count.
    """

    def load(length: int) -> np.ndarray:
        start = np.array([_children(), time.process_time()])
        loader = DataLoader(Repeated(dataset, length), 2, num_workers=1, collate_fn=pseudo_collate)
        for _ in loader:
            pass
        del loader
        return np.array([_children(), time.process_time()]) - start

    return tuple((load(3 * number) - load(number)) / (2 * number))


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def texture(rng: np.random.Generator, height: int, width: int, channels: int = 3) -> np.ndarray:
    """Noise of all scales, the coarse ones stronger, as in photographs: (H, W, channels) float32."""
    image = np.zeros((height, width, channels), np.float32)
    for octave in range(1, 8):
        cells = 2**octave
        noise = rng.normal(size=(cells * height // width + 2, cells + 1, channels)).astype(np.float32)
        image += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC).reshape(image.shape) / cells**0.6
    return image


def write_image(rng: np.random.Generator, path: Path, size: tuple[int, int]) -> None:
    """Write a JPEG of texture and a camera's noise."""
    image = texture(rng, *size)
    image += rng.normal(0, 0.1, image.shape)
    image = np.clip(115 + 50 * (image - image.mean()) / image.std(), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])


def make_coco(root: Path, number: int) -> None:
    """Write images and instances in COCO's format; sizes of objects as in COCO, 40 % below 32 x 32 pixels."""
    rng = np.random.default_rng(0)
    height, width = SIZES['coco']
    images, annotations = [], []
    for index in range(number):
        name = f'{index:012d}.jpg'
        write_image(rng, root / 'train2017' / name, (height, width))
        images.append(dict(id=index, file_name=name, height=height, width=width))
        for _ in range(1 + rng.poisson(6.3)):
            size = min(np.exp(rng.normal(np.log(42), 1.1)), 400)
            angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(8, 61)))
            radii = size / 2 * (1 + 0.25 * np.sin(3 * angles) + rng.normal(0, 0.05, len(angles)))
            centre = rng.uniform(0, (width, height))
            points = centre + radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            points = points.clip(0, (width, height)).round(2)
            (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
            if min(right - left, bottom - top) < 2:
                continue
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=index,
                    category_id=int(rng.choice([each['id'] for each in CATEGORIES])),
                    iscrowd=0,
                    bbox=[left, top, right - left, bottom - top],
                    area=size**2,
                    segmentation=[points.ravel().tolist()],
                )
            )
    path = root / 'annotations' / 'instances_train2017.json'
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(dict(images=images, annotations=annotations, categories=CATEGORIES)))


def make_ade20k(root: Path, number: int) -> None:
    """Write images and label maps of a dozen classes with ragged borders."""
    rng = np.random.default_rng(1)
    for index in range(number):
        write_image(rng, root / 'images' / 'training' / f'ADE_train_{index:08d}.jpg', SIZES['ade'])
        fields = texture(rng, *SIZES['ade'], channels=12)
        labels = rng.choice(150, 12, replace=False)[fields.argmax(axis=2)] + 1
        path = root / 'annotations' / 'training' / f'ADE_train_{index:08d}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), labels.astype(np.uint8))


if __name__ == '__main__':
    main()
