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


def enlarge(file: Path) -> None:
    image = Image.open(file)
    image.resize((image.width + 1, image.height)).save(file)


DAMAGE = {
    'image cut off': (lambda folder: cut(image(folder), 0.01), r'cannot decode the image \S+0003.jpg: '),
    'image empty': (lambda folder: cut(image(folder), 0), r'cannot decode the image \S+0003.jpg: '),
    'label map cut off': (
        lambda folder: cut(label_map(folder)),
        r'cannot read the label map \S+0003.png: .*truncated',
    ),
    'label map of another kind': (
        lambda folder: label_map(folder).write_text('no image'),
        r'cannot read the label map \S+0003.png: ',
    ),
    'label map of another size': (
        lambda folder: enlarge(label_map(folder)),
        r'the label map \S+0003.png is of shape \(\d+, \d+\), its image of \(\d+, \d+\); ',
    ),
    'label map in colour': (
        lambda folder: shutil.copy(image(folder), label_map(folder)),
        r'the label map \S+0003.png is of shape \(\d+, \d+, 3\), its image of \(\d+, \d+\); ',
    ),
    'label map missing': (lambda folder: label_map(folder).unlink(), r'label map \S+0003.png not found'),
}


@pytest.mark.parametrize('name', ['ade20k', 'ade20k_mask2former'])
@pytest.mark.parametrize(('damage', 'message'), DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_named(name: str, damage, message: str, build) -> None:
    dataset = build(name, damage)
    with pytest.raises(BadDataError, match=f'^{message}') as error:
        dataset[BROKEN]
    assert '\n' not in str(error.value)
    assert dataset[BROKEN + 1]['data_samples'].gt_sem_seg.shape


@pytest.mark.parametrize('name', ['coco_instance', 'coco_instance_multi_scale', 'coco_detection'])
def test_missing_image_is_named(name: str, build) -> None:
    dataset = build(name, lambda folder: image(folder).unlink())
    with pytest.raises(BadDataError, match=r'^image not found: \S+000003.jpg$'):
        dataset[BROKEN]
    assert len(dataset[BROKEN + 1]['data_samples'].gt_instances)


def segment(segmentation: object):
    """Returns a function that sets the segmentation of the first instance of the sample `BROKEN`."""

    def damage(folder: Path) -> None:
        file = folder / 'annotations/instances_train2017.json'
        content = json.loads(file.read_text())
        image_id = content['images'][BROKEN]['id']
        first = next(each for each in content['annotations'] if each['image_id'] == image_id and not each['iscrowd'])
        first['segmentation'] = segmentation
        file.write_text(json.dumps(content))

    return damage


@pytest.mark.parametrize('name', ['coco_instance', 'coco_instance_multi_scale'])
def test_broken_segmentation_is_named(name: str, build) -> None:
    dataset = build(name, segment([[10, 10, 20, 20]]))
    with pytest.raises(BadDataError) as error:
        dataset[BROKEN]
    found = re.match(
        r'bad segmentation in the annotations of the image \S+000003.jpg \(image_id (\d+), bbox (\[.*?\])\): '
        r'no polygon of three points or more',
        str(error.value),
    )
    content = json.loads((Path(dataset.data_root) / 'annotations/instances_train2017.json').read_text())
    (annotation,) = [each for each in content['annotations'] if each['segmentation'] == [[10, 10, 20, 20]]]
    assert (int(found[1]), json.loads(found[2])) == (annotation['image_id'], annotation['bbox'])
    assert len(dataset[BROKEN + 1]['data_samples'].gt_instances)


def test_boxes_alone_need_no_segmentation(build) -> None:
    assert len(build('coco_detection', segment('nothing'))[BROKEN]['data_samples'].gt_instances)


SHAPE = (20, 30)
TRIANGLE = [1.0, 1.0, 9.0, 1.0, 5.0, 9.0]
RUNS = [10, 5, 585]


@pytest.mark.parametrize(
    'segmentation',
    [
        [TRIANGLE],
        [[1.0, 2.0], TRIANGLE],  # mmdet drops the short one
        {'size': [20, 30], 'counts': RUNS},
        {'size': [20, 30], 'counts': [600]},
    ],
)
def test_good_segmentation(segmentation: object) -> None:
    check_segmentation(segmentation, SHAPE)


BROKEN_SEGMENTATIONS = {
    'none': (None, 'neither polygons nor run lengths'),
    'number': (3, 'neither polygons nor run lengths'),
    'empty': ([], 'no polygon of three points'),
    'odd': ([[*TRIANGLE, 1.0]], 'no polygon of three points'),
    'two points': ([TRIANGLE[:4]], 'no polygon of three points'),
    'not nested': (TRIANGLE, 'no polygon of three points'),
    'nested points': ([[[1, 1], [9, 1], [5, 9]]], 'no polygon of three points'),
    'words': ([['a'] * 6], 'coordinates that are not numbers'),
    'numbers in quotes': ([['1', 1, 9, '1', 5, 9]], 'coordinates that are not numbers'),
    'missing number': ([[None, *TRIANGLE[1:]]], 'not finite or is far'),
    'not a number': ([[math.nan, *TRIANGLE[1:]]], 'not finite or is far'),
    'infinite': ([TRIANGLE, [-math.inf, *TRIANGLE[1:]]], 'not finite or is far'),
    'far': ([[1e9, *TRIANGLE[1:]]], 'not finite or is far'),
    'no counts': ({'size': [20, 30]}, 'neither polygons nor run lengths'),
    'other size': ({'size': [30, 20], 'counts': RUNS}, r'for an image of size \[30, 20\], not \[20, 30\]'),
    'no size': ({'size': None, 'counts': RUNS}, 'for an image of size None'),
    'too few': ({'size': [20, 30], 'counts': RUNS[:2]}, 'do not add up to the 600 pixels'),
    'too many': ({'size': [20, 30], 'counts': [*RUNS, 1]}, 'do not add up to the 600 pixels'),
    'negative': ({'size': [20, 30], 'counts': [10, -5, 595]}, 'do not add up to the 600 pixels'),
    'counts of words': ({'size': [20, 30], 'counts': ['a', 600]}, 'do not add up to the 600 pixels'),
    'counts no list': ({'size': [20, 30], 'counts': 600}, 'do not add up to the 600 pixels'),
    'empty string': ({'size': [20, 30], 'counts': ''}, 'do not add up to the 600 pixels'),
    'string without an end': ({'size': [20, 30], 'counts': 'o' * 300_000}, 'are not what COCO writes'),
    'string of another mask': ({'size': [20, 30], 'counts': '0123'}, 'do not add up to the 600 pixels'),
}


@pytest.mark.parametrize(('segmentation', 'message'), BROKEN_SEGMENTATIONS.values(), ids=BROKEN_SEGMENTATIONS)
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
    """The lines that the hook logs."""
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


@pytest.mark.parametrize('num_workers', [0, 2])
def test_skipped_and_counted(num_workers: int, build, logged: list[str]) -> None:
    def damage(folder: Path) -> None:
        cut(image(folder, 0), 0.01)
        cut(image(folder, 3), 0)
        cut(label_map(folder, 7))

    hook, loader = start(build('ade20k', damage), num_workers, interval=4)
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


def test_skipped_detection_samples(build, logged: list[str]) -> None:
    def damage(folder: Path) -> None:
        segment([[math.nan] * 6])(folder)
        image(folder, 5).unlink()

    hook, loader = start(build('coco_instance', damage), num_workers=2)
    assert sum(len(batch['data_samples']) for batch in loader) == NUM_TRAIN
    hook.after_train(SimpleNamespace())
    assert re.match(r'skipped: bad segmentation in the annotations of the image \S+0003.jpg ', logged[0])
    assert re.match(r'skipped: image not found: \S+0006.jpg', logged[1])
    assert logged[2:] == [f'bad training samples skipped: 2 of {NUM_TRAIN}']


def test_sample_that_has_recovered(build, logged: list[str]) -> None:
    dataset = build('ade20k')
    file = image(Path(dataset.data_root))
    content = file.read_bytes()
    cut(file, 0.01)
    hook, loader = start(dataset, num_workers=0)
    assert len(list(loader)) == NUM_TRAIN / 2
    file.write_bytes(content)
    hook.after_train(SimpleNamespace())
    assert re.match(r'skipped: the image \S+0003.jpg or its annotations could not be loaded at first', logged[0])


def test_nothing_to_skip(build, logged: list[str]) -> None:
    hook, loader = start(build('ade20k'), num_workers=0)
    for step, _ in enumerate(loader):
        hook.after_train_iter(SimpleNamespace(), step)
    hook.after_train(SimpleNamespace())
    assert logged == [f'bad training samples skipped: 0 of {NUM_TRAIN}']


def test_datasets_inside_of_others(build, logged: list[str]) -> None:
    first = build('ade20k', lambda folder: cut(image(folder), 0.01))
    second = build('ade20k_mask2former', lambda folder: cut(label_map(folder)))
    assert list(leaf_datasets(RepeatDataset(first, 2))) == [first]
    hook, loader = start(ConcatDataset([first, second]), num_workers=0)
    assert len(list(loader)) == NUM_TRAIN
    hook.after_train(SimpleNamespace())
    assert re.match(r'skipped: cannot decode the image \S+0003.jpg', logged[0])
    assert re.match(r'skipped: cannot read the label map \S+0003.png', logged[1])
    assert logged[2:] == [f'bad training samples skipped: 2 of {2 * NUM_TRAIN}']


@pytest.mark.parametrize('num_workers', [0, 1])
def test_all_bad(num_workers: int, build) -> None:
    dataset = build('ade20k', lambda folder: [cut(image(folder, index), 0.01) for index in range(NUM_TRAIN)])
    _, loader = start(dataset, num_workers)
    with pytest.raises(InputError) as error:
        next(iter(loader))
    assert re.search(
        r'1000 bad training samples in a row, the last one: cannot decode the image \S+.jpg: ',
        str(error.value).splitlines()[-1],
    )
