"""Images and annotations that cannot be used: errors name the file, and training can skip them."""

import json
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.dataset import BaseDataset, ConcatDataset, RepeatDataset, pseudo_collate
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image
from pycocotools import mask as coco_mask
from torch.utils.data import DataLoader

from bioattn_mm.data.checks import BadDataError, check_segmentation, read_run_lengths
from bioattn_mm.data.mini.coco import run_lengths
from bioattn_mm.data.skipping import leaf_datasets
from bioattn_mm.errors import InputError
from bioattn_mm.training import bad_data
from bioattn_mm.training.bad_data import SkipBadDataHook

from .conftest import NUM_TRAIN

BROKEN = 2  # the index of the sample that a test damages


@pytest.fixture
def build(root: Path, tmp_path: Path, mini: dict[str, Path]):
    """Builds the training dataset of a config on a copy of the miniature, which a function has damaged."""

    def build_damaged(name: str, damage=lambda folder: None) -> BaseDataset:
        folder = tmp_path / name
        shutil.copytree(mini['ade20k' if name.startswith('ade20k') else 'coco'], folder)
        damage(folder)
        init_default_scope('mmseg' if name.startswith('ade20k') else 'mmdet')
        config = Config.fromfile(root / f'configs/_base_/datasets/{name}.py')
        config.train_dataloader.dataset.data_root = str(folder)
        return DATASETS.build(config.train_dataloader.dataset)

    return build_damaged


def cut(file: Path, share: float = 0.5) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def image(folder: Path, index: int = BROKEN) -> Path:
    """Path of a training image of either dataset."""
    return sorted([*folder.glob('images/training/*.jpg'), *folder.glob('train2017/*.jpg')])[index]


def label_map(folder: Path, index: int = BROKEN) -> Path:
    return sorted(folder.glob('annotations/training/*.png'))[index]


def panoptic_map(folder: Path) -> Path:
    return folder / f'annotations/panoptic_train2017/{BROKEN + 1:012d}.png'


def segment(segmentation: object):
    """Returns a function that sets the segmentation of the first instance of the sample `BROKEN`, and a box."""

    def damage(folder: Path) -> None:
        file = folder / 'annotations/instances_train2017.json'
        content = json.loads(file.read_text())
        image_id = content['images'][BROKEN]['id']
        first = next(each for each in content['annotations'] if each['image_id'] == image_id and not each['iscrowd'])
        first.update(segmentation=segmentation, bbox=[9, 8, 70, 60])
        file.write_text(json.dumps(content))

    return damage


IMAGE, LABEL_MAP = r'cannot decode the image \S+0003.jpg: ', r'cannot read the label map \S+0003.png: '
PANOPTIC_MAP = r'cannot use the panoptic map \S+000003.png: '
SHAPES = r'the label map \S+0003.png is of shape \(\d+, \d+%s\), its image of \(\d+, \d+\); '
# The config, what is done to its data, and how the error begins.
DAMAGE = [
    ('ade20k', lambda folder: cut(image(folder), 0.01), IMAGE),
    ('ade20k_mask2former', lambda folder: cut(image(folder), 0), IMAGE),
    ('ade20k', lambda folder: cut(label_map(folder)), f'{LABEL_MAP}.*truncated'),
    ('ade20k_mask2former', lambda folder: label_map(folder).write_text('no image'), LABEL_MAP),
    ('ade20k', lambda folder: Image.new('L', (7, 5)).save(label_map(folder)), SHAPES % ''),
    ('ade20k_mask2former', lambda folder: shutil.copy(image(folder), label_map(folder)), SHAPES % ', 3'),
    ('ade20k', lambda folder: label_map(folder).unlink(), r'label map \S+0003.png not found'),
    ('coco_instance', lambda folder: image(folder).unlink(), r'image not found: \S+000003.jpg$'),
    (
        'coco_instance_multi_scale', segment([[10, 10, 20, 20]]),
        r'bad segmentation in the annotations of the image \S+000003.jpg \(image_id 3, bbox \[9, 8, 70, 60\]\): '
        'no polygon of three points or more',
    ),
    ('coco_panoptic', lambda folder: panoptic_map(folder).unlink(), r'panoptic map \S+000003.png not found'),
    ('coco_panoptic', lambda folder: panoptic_map(folder).write_bytes(b'no'), f'{PANOPTIC_MAP}cannot identify image'),
    (
        'coco_panoptic', lambda folder: Image.new('RGB', (7, 5)).save(panoptic_map(folder)),
        rf'{PANOPTIC_MAP}it is of shape \(5, 7\)',
    ),
    (
        'coco_panoptic', lambda folder: Image.new('RGB', Image.open(image(folder)).size).save(panoptic_map(folder)),
        f'{PANOPTIC_MAP}it has no pixel of the segment',
    ),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'damage', 'message'), DAMAGE)
def test_damaged_file_is_named(name: str, damage, message: str, build) -> None:
    dataset = build(name, damage)
    with pytest.raises(BadDataError, match=f'^{message}') as error:
        dataset[BROKEN]
    assert '\n' not in str(error.value)
    sample = dataset[BROKEN + 1]['data_samples']
    assert sample.gt_sem_seg.shape if name.startswith('ade20k') else len(sample.gt_instances)


SHAPE = (20, 30)
TRIANGLE = [1.0, 1.0, 9.0, 1.0, 5.0, 9.0]
RUNS = [10, 5, 585]


def test_good_segmentation() -> None:
    check_segmentation([TRIANGLE], SHAPE)
    check_segmentation([[1.0, 2.0], TRIANGLE], SHAPE)  # mmdet drops the short one
    check_segmentation({'size': [20, 30], 'counts': [600]}, SHAPE)


NUMBERS, POINTS, FAR = 'coordinates that are not numbers', 'no polygon of three points', 'not finite or is far'
NEITHER, SUM = 'neither polygons nor run lengths', 'do not add up to the 600 pixels'
BROKEN_SEGMENTATIONS = [
    (None, NEITHER),
    ([], POINTS),
    ([[*TRIANGLE, 1.0]], POINTS),
    ([TRIANGLE[:4]], POINTS),
    ([[[1, 1], [9, 1], [5, 9]]], POINTS),
    ([['a'] * 6], NUMBERS),
    ([['1', 1, 9, '1', 5, 9]], NUMBERS),
    ([[None, *TRIANGLE[1:]]], FAR),
    ([TRIANGLE, [-math.inf, *TRIANGLE[1:]]], FAR),
    ([[1e9, *TRIANGLE[1:]]], FAR),
    ({'size': [20, 30]}, NEITHER),
    ({'size': [30, 20], 'counts': RUNS}, r'for an image of size \[30, 20\], not \[20, 30\]'),
    ({'size': None, 'counts': RUNS}, 'for an image of size None'),
    ({'size': [20, 30], 'counts': [*RUNS, 1]}, SUM),
    ({'size': [20, 30], 'counts': [10, -5, 595]}, SUM),
    ({'size': [20, 30], 'counts': ['a', 600]}, SUM),
    ({'size': [20, 30], 'counts': 600}, SUM),
    ({'size': [20, 30], 'counts': ''}, SUM),
    ({'size': [20, 30], 'counts': 'o' * 300_000}, 'are not what COCO writes'),
]


@pytest.mark.parametrize(('segmentation', 'message'), BROKEN_SEGMENTATIONS)
def test_broken_segmentation(segmentation: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_segmentation(segmentation, SHAPE)


@pytest.mark.parametrize('density', [0.0, 0.01, 0.5, 1.0])
def test_run_lengths_of_a_string(density: float) -> None:
    mask = np.random.default_rng(0).random((60, 90)) < density
    encoded = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    encoded['counts'] = encoded['counts'].decode()
    assert read_run_lengths(encoded['counts']) == run_lengths(mask)['counts']
    check_segmentation(encoded, mask.shape)
    with pytest.raises(ValueError, match='do not add up to the 5400 pixels'):
        check_segmentation({**encoded, 'counts': encoded['counts'][:-1]}, mask.shape)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines = []
    monkeypatch.setattr(bad_data, 'print_log', lambda message, *_: lines.append(message))
    return lines


def start(dataset: object, num_workers: int, interval: int = 50) -> tuple[SkipBadDataHook, DataLoader]:
    """The hook and the data loader of a training run on a dataset."""
    loader = DataLoader(
        dataset, batch_size=2, num_workers=num_workers, collate_fn=pseudo_collate, persistent_workers=num_workers > 0
    )
    hook = SkipBadDataHook(interval)
    hook.before_train(SimpleNamespace(train_dataloader=loader))
    return hook, loader


def test_skipped_and_counted(build, logged: list[str]) -> None:
    def damage(folder: Path) -> None:
        cut(image(folder, 0), 0.01)
        cut(image(folder, 3), 0)
        cut(label_map(folder, 7))

    hook, loader = start(build('ade20k', damage), num_workers=2, interval=4)
    # Two epochs of 6 steps; bad samples are logged after the fourth step of each.
    for _ in range(2):
        for step, batch in enumerate(loader):
            names = [Path(sample.img_path).name for sample in batch['data_samples']]
            assert len(names) == 2
            assert not {'ADE_train_00000001.jpg', 'ADE_train_00000004.jpg', 'ADE_train_00000008.jpg'} & set(names)
            hook.after_train_iter(SimpleNamespace(), step)
    hook.after_train(SimpleNamespace())

    skipped = sorted(line for line in logged if line.startswith('skipped: '))
    assert len(skipped) == 3
    for line, name in zip(skipped, ('image \\S+0001.jpg', 'image \\S+0004.jpg', 'label map \\S+0008.png')):
        assert re.match(f'skipped: cannot (decode|read) the {name}: ', line)
    counts = [line for line in logged if line not in skipped]
    assert counts == [f'bad training samples skipped: 3 of {NUM_TRAIN}']


def test_datasets_inside_of_others_and_a_sample_that_has_recovered(build, logged: list[str]) -> None:
    first, second = build('coco_instance', segment([[math.nan] * 6])), build('coco_instance_multi_scale')
    file = image(Path(second.data_root), 5)
    away = file.rename(file.with_suffix('.away'))
    assert list(leaf_datasets(RepeatDataset(first, 2))) == [first]
    hook, loader = start(ConcatDataset([first, second]), num_workers=0)
    assert sum(len(batch['data_samples']) for batch in loader) == 2 * NUM_TRAIN
    away.rename(file)
    hook.after_train(SimpleNamespace())
    assert re.match(r'skipped: bad segmentation in the annotations of the image \S+0003.jpg ', logged[0])
    assert re.match(r'skipped: the image \S+0006.jpg or its annotations could not be loaded at first', logged[1])
    assert logged[2:] == [f'bad training samples skipped: 2 of {2 * NUM_TRAIN}']


def test_a_panoptic_map_that_was_skipped(build, logged: list[str]) -> None:
    hook, loader = start(
        build('coco_panoptic', lambda folder: panoptic_map(folder).write_bytes(b'no')), num_workers=0
    )
    assert len(list(loader)) == NUM_TRAIN / 2
    hook.after_train(SimpleNamespace())
    assert re.match(f'skipped: {PANOPTIC_MAP}cannot identify image', logged[0])


@pytest.mark.parametrize('num_workers', [0, 1])
def test_all_bad(num_workers: int, build) -> None:
    dataset = build('ade20k', lambda folder: [cut(image(folder, index), 0.01) for index in range(NUM_TRAIN)])
    _, loader = start(dataset, num_workers)
    message = r'^1000 bad training samples in a row, the last one: cannot decode the image \S+.jpg: .*$'
    with pytest.raises(InputError, match=message):  # in one line, from a worker, too
        next(iter(loader))
