"""ADE20K's annotations of instance and panoptic segmentation in COCO's format, made of what the site offers.

That is ADEChallengeData2016.zip, whose `annotations` are label maps of the 150 classes, and annotations_instance.tar,
whose `annotations_instance` are images of the same names: red is the class among the 100 that have instances, from 1,
green the number of the instance in its image, from 1; 0 is no instance.
"""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

from ..errors import InputError
from ..runtime.files import atomic_folder, write_json
from .class_names import ADE20K_CLASSES, ADE20K_PANOPTIC_NAMES, ADE20K_STUFF
from .image_files import in_threads
from .panoptic import PanopticMap, box_of

SPLITS = {'training': 'train', 'validation': 'val'}  # the splits in the names of folders and files
INSTANCES = 'annotations_instance'
HOW_TO_GET_INSTANCES = (
    'download http://sceneparsing.csail.mit.edu/data/ChallengeData2017/annotations_instance.tar and unpack it there'
)
THINGS = tuple(name for name in ADE20K_CLASSES if name not in ADE20K_STUFF)
# Their ids are the classes' numbers in ADE20K, from 0.
INSTANCE_CATEGORIES = [dict(id=ADE20K_CLASSES.index(name), name=name) for name in THINGS]
# Their ids are the places in this list: mmdet's `ADE20KPanopticDataset` has things before stuff.
PANOPTIC_CATEGORIES = [
    dict(id=index, name=ADE20K_PANOPTIC_NAMES.get(name, name), isthing=int(name in THINGS))
    for index, name in enumerate((*THINGS, *ADE20K_STUFF))
]
# The id by the value of a pixel in a label map.
STUFF_IDS = {ADE20K_CLASSES.index(name) + 1: len(THINGS) + index for index, name in enumerate(ADE20K_STUFF)}


def output_files(root: Path, split: str) -> tuple[Path, Path]:
    """The annotation files that `convert_split` writes: of instances, and of panoptic segmentation."""
    return tuple(root / f'ade20k_{kind}_{SPLITS[split]}.json' for kind in ('instance', 'panoptic'))


def convert_split(root: Path, split: str, track: Callable = lambda results, total: results) -> tuple[Path, Path]:
    """Write and return `ade20k_instance_*.json` and `ade20k_panoptic_*.json`, and the folder of PNGs of the latter.

    `root` is the folder `ADEChallengeData2016`, `track` shows progress over the images, whose number is `total`.
    """
    images = sorted((root / 'images' / split).glob('*.jpg'))
    if not images:
        raise InputError(f'no images in {root / "images" / split}: name the folder ADEChallengeData2016')
    if not (root / INSTANCES / split).is_dir():
        raise InputError(f'no instances in {root / INSTANCES / split}: {HOW_TO_GET_INSTANCES}')
    instance_file, panoptic_file = output_files(root, split)
    folder = panoptic_file.with_suffix('')

    def convert(index: int) -> tuple[dict, list[dict], dict]:
        path = images[index]
        name = f'{path.stem}.png'
        labels, instances = _read(root / 'annotations' / split / name), _read(root / INSTANCES / split / name)
        with Image.open(path) as image:
            width, height = image.size
        entry = dict(id=index + 1, file_name=path.name, width=width, height=height)
        try:
            if not labels.shape[:2] == instances.shape[:2] == (height, width):
                raise ValueError(f'are of {labels.shape[:2]} and {instances.shape[:2]}, the image of {height, width}')
            annotations, panoptic = annotate(labels, instances)
        except ValueError as error:
            raise InputError(f'the annotations {name} of {split} {error}: download and unpack them again') from error
        panoptic.image().save(partial / name)
        segments = dict(image_id=entry['id'], file_name=name, segments_info=panoptic.segments())
        return entry, [dict(annotation, image_id=entry['id']) for annotation in annotations], segments

    with atomic_folder(folder) as partial:
        results = track(in_threads(convert, range(len(images))), total=len(images))
        entries, annotations, segments = zip(*results)
    numbered = [dict(each, id=number) for number, each in enumerate(chain.from_iterable(annotations), start=1)]
    for file, of_images, categories in (
        (instance_file, numbered, INSTANCE_CATEGORIES),
        (panoptic_file, segments, PANOPTIC_CATEGORIES),
    ):
        write_json(file, dict(images=entries, annotations=of_images, categories=categories), indent=None)
    return instance_file, panoptic_file


def annotate(labels: np.ndarray, instances: np.ndarray) -> tuple[list[dict], PanopticMap]:
    """The annotations of one image: instances without their ids, and segments, stuff by class and things by instance.

    Pixels of things that are of no instance are unlabelled. A `ValueError` says what is wrong.

    Args:
        labels: (H, W) uint8, class + 1, or 0.
        instances: (H, W, 3) uint8: class among `THINGS` + 1, number of the instance, and nothing.
    """
    panoptic = PanopticMap(labels.shape)
    for value in np.unique(labels):
        if value in STUFF_IDS:
            panoptic.add(labels == value, STUFF_IDS[value])
    annotations = []
    for number in np.unique(instances[..., 1]):
        if number == 0:
            continue
        mask = instances[..., 1] == number
        values = np.unique(instances[..., 0][mask])
        if len(values) > 1 or not 1 <= values[0] <= len(THINGS):
            raise ValueError(f'have an instance of the classes {values.tolist()}, expected one of 1 to {len(THINGS)}')
        thing = int(values[0]) - 1
        panoptic.add(mask, thing)
        encoded = coco_mask.encode(np.asfortranarray(mask, np.uint8))
        annotations.append(
            dict(
                category_id=INSTANCE_CATEGORIES[thing]['id'],
                iscrowd=0,
                bbox=box_of(mask),
                area=int(mask.sum()),
                segmentation=dict(size=encoded['size'], counts=encoded['counts'].decode()),
            )
        )
    return annotations, panoptic


def _read(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            return np.array(image)
    except OSError as error:
        raise InputError(f'the annotation {path} is missing or damaged: download and unpack it again') from error
