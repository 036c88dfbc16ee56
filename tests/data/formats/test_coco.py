"""Own data in COCO's format: its layouts, what is refused, and what is said of wrong habits of exporters."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from bioattn_mm.data.checks import Problem
from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.data.formats.coco import likeness, read_coco_file
from bioattn_mm.data.formats.detectors import read_objects
from bioattn_mm.data.formats.folders import OwnData
from bioattn_mm.data.image_files import spread
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.data_check import check_annotations
from bioattn_mm.training.config.loading import load_config

from ...own_folders import CLASSES, HEIGHT, UPRIGHT, WIDTH, coco, corners, images_of, write_coco_folder, write_images
from .conftest import SEEDS, VAL_SEEDS

ONE = 'annotations.json'
DETECTOR = str(Path(__file__).parents[2] / 'tools/mask_rcnn_small.py')


def read(data: Path, **arguments: object) -> OwnData:
    return read_objects(DataArguments(str(data), **arguments), True)


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def edited(path: Path, edit: Callable[[dict], object]) -> Path:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    return path


def write_splits(
    folder: Path, images: str, annotations: str = '{}.json', before: str = '', edit: Callable | None = None, **splits
) -> None:
    """A folder of images and a file of annotations, which is edited, for each split, with its name for `{}`."""
    for split, seeds in (splits or dict(train=SEEDS, val=VAL_SEEDS)).items():
        names = [before.format(split) + name for name in write_images(folder / images.format(split), seeds)]
        write_json(folder / annotations.format(split), coco(seeds, names))
        if edit is not None:
            edited(folder / annotations.format(split), edit)


def coco_2017(folder: Path) -> None:
    """As the real COCO, with the other files that it has."""
    for kind in ('captions', 'instances', 'person_keypoints'):
        write_splits(folder, '{}2017', f'annotations/{kind}_{{}}2017.json')
    write_json(folder / 'annotations/image_info_test2017.json', dict(images=[]))


def images_by_split(folder: Path) -> None:
    """Images of the same names in both splits."""
    write_splits(folder, 'images/{}', 'annotations/{}.json', train=SEEDS, val=SEEDS[:4])


def with_parts(document: dict) -> None:
    """A category for all others, as Roboflow exports."""
    parts = [dict(each, supercategory='parts') for each in document['categories']]
    document['categories'] = [dict(id=0, name='parts', supercategory='none'), *parts]


def floats_and_background(document: dict) -> None:
    """Whole numbers as floats, and the background of labelme with an object."""
    document['categories'].insert(0, dict(id=0, name='_background_'))
    document['annotations'].append(dict(document['annotations'][0], id=999, category_id=0))
    for key, names in dict(images=('id', 'width'), annotations=('image_id', 'category_id')).items():
        for each in document[key]:
            each.update({name: float(each[name]) for name in names})


def captions_beside(folder: Path) -> None:
    write_splits(folder, 'images', 'stuffed_toys_{}.json')
    write_json(folder / 'captions_train.json', dict(images=[], annotations=[dict(caption='a')], categories=[]))


LAYOUTS = dict(
    coco_2017=coco_2017, images_by_split=images_by_split, captions_beside=captions_beside,
    roboflow=partial(
        write_splits, images='{}', annotations='{}/_annotations.coco.json', edit=with_parts,
        train=SEEDS, valid=VAL_SEEDS, test=range(60, 62),
    ),
    floats_and_background=partial(write_splits, images='{}', edit=floats_and_background),
    # File names that begin with folders, of this machine or of another one; Label Studio has written most.
    folders=partial(write_splits, images='{}', before='{}/'),
    backslashes=partial(write_splits, images='JPEGImages', before='JPEGImages\\'),
    machine=partial(write_splits, images='images', before='..\\..\\media\\upload\\4\\'),
    windows=partial(write_splits, images='images', before='images\\1/'),
    query=partial(write_splits, images='images', before='data/local-files/?d=set/'),
)  # fmt: skip


@pytest.mark.parametrize('name', LAYOUTS)
def test_layouts(name: str, tmp_path: Path) -> None:
    LAYOUTS[name](tmp_path)
    own = read(tmp_path)
    assert own.classes == CLASSES
    train, val = (images_of(own.datasets[split]) for split in ('train', 'val'))
    assert len(train) == len(SEEDS) and len(val) == 4 and not set(train) & set(val)
    assert ('test' in own.datasets) == (name == 'roboflow')
    notes = ' '.join(own.notes)
    assert 'numbered' not in notes and ('folders in file names' in notes) == (name in ('machine', 'windows', 'query'))
    objects = coco(SEEDS, [''] * len(SEEDS))['annotations']
    found = read_coco_file(own.datasets['train']['ann_file']).annotations
    assert [list(each.bbox) for each in found] == [each['bbox'] for each in objects]


def test_a_file_beside_which_the_tool_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LAYOUTS['coco_2017'](tmp_path)
    monkeypatch.chdir(tmp_path / 'annotations')
    (file,) = Path().glob('instances_train*.json')
    assert len(images_of(read(file).datasets['train'])) > len(SEEDS) / 2


def test_a_single_file_is_split_at_random_and_always_the_same(tmp_path: Path) -> None:
    folder = write_coco_folder(tmp_path / 'parts', range(30))
    before = sorted(folder.rglob('*'))
    splits = []
    for path in (folder, folder / ONE):
        own = read(path)
        splits.append([images_of(own.datasets[split]) for split in ('train', 'val')])
    assert splits[0] == splits[1]
    train, val = splits[0]
    assert len(val) == 3 and len(train) == 27 and not set(train) & set(val)
    # Not the first ones or the last ones.
    assert val not in (sorted(train + val)[:3], sorted(train + val)[-3:])
    assert any('3 images drawn for validation' in note for note in own.notes)
    assert sorted(folder.rglob('*')) == before


def test_what_mmdet_needs_is_made_up_for(tmp_path: Path) -> None:
    """Area, iscrowd and ids of annotations, and categories in one order."""

    def edit(document: dict) -> None:
        document['categories'].reverse()
        for each in document['annotations']:
            del each['id']

    images_by_split(tmp_path)
    edited(tmp_path / 'annotations/val.json', edit)
    own = read(tmp_path)
    init_default_scope('mmdet')
    objects = []
    for split in ('train', 'val'):
        dataset = DATASETS.build(dict(own.datasets[split], pipeline=[], metainfo=dict(classes=own.classes)))
        instances = dataset.get_data_info(0)['instances']
        objects.append([(instance['bbox_label'], instance['bbox']) for instance in instances])
    # The same image is the first of both.
    assert objects[0] == objects[1] and len({label for label, _ in objects[0]}) > 1
    assert sum('categories were brought into the order' in note for note in own.notes) == 1
    written = json.loads(Path(own.datasets['val']['ann_file']).read_text())['annotations']
    assert all(each['area'] > 0 and each['iscrowd'] == 0 for each in written)
    assert len({each['id'] for each in written}) == len(written)


def test_a_box_without_area_is_as_large_as_a_box_can_be(parts: Path) -> None:
    """The copy with its area is read, too: the entry of which something is said is one of the file."""

    def edit(document: dict) -> None:
        document['annotations'][0]['bbox'] = [0, 0, 1e12, 1e12]
        document['categories'].append(dict(id=99, name='screw', supercategory='screw'))  # a class without objects

    edited(parts / ONE, edit)
    own = read(parts)
    assert own.classes == (*CLASSES, 'screw')
    assert not any(read_coco_file(dataset['ann_file']).faults for dataset in own.datasets.values())


def validation_of_other_classes(folder: Path) -> None:
    shutil.rmtree(folder)
    images_by_split(folder)
    edited(folder / 'annotations/val.json', lambda document: document['categories'][2].update(name='screw'))


def keys(**values: object) -> Callable:
    return lambda folder: edited(folder / ONE, lambda document: document.update(values))


BOX = dict(id=1, image_id=10, category_id=2)  # but for the box
BAD = [
    (shutil.rmtree, '--data not found: .*parts'),
    (lambda folder: (folder / ONE).unlink(), r"COCO's format in .*parts: looked for \*.json, annotations/\*.json"),
    (
        lambda folder: ((folder / ONE).unlink(), (folder / ONE).symlink_to('gone.json')),
        "COCO's format in .*annotations.json is a link to gone.json, which is not there",
    ),
    (lambda folder: (folder / ONE).write_text('{'), f"COCO's format in .*parts: .*/{ONE} is no JSON file: "),
    (lambda folder: write_json(folder / ONE, [1]), "no annotations in COCO's format"),
    (
        lambda folder: shutil.copy(folder / ONE, folder / 'more.json'),
        'parts has 2 files of annotations for training: annotations.json, more.json; name one with --train-data',
    ),
    (lambda folder: shutil.rmtree(folder / 'images'), 'names the image part_000.jpg, which is in none of the'),
    (
        lambda folder: [path.rename(path.with_name(path.name.upper())) for path in (folder / 'images').iterdir()],
        "which is in none of the folders .*; there is 'PART_000.JPG', spelt in",
    ),
    (keys(images=[]), 'annotations.json has no images'),
    (keys(categories=[]), 'has no categories'),
    (
        lambda folder: keys(annotations=[])(folder).rename(folder / 'test.json'),
        'test.json has no annotations, and there are no other da',
    ),
    (keys(annotations=[dict(BOX, bbox=[1, 1, 9, 9])]), 'take a config that detects boxes'),
    (keys(annotations=[BOX]), 'annotations.json: annotation 1: no bbox'),
    (keys(categories=[dict(id=i, name='bolt') for i in (2, 7)]), "has 2 categories 'bolt'"),
    (validation_of_other_classes, "val.json has 0 categories 'washer', expected one"),
]


@pytest.mark.parametrize(('damage', 'message'), BAD)
def test_what_is_refused(damage: Callable, message: str, parts: Path) -> None:
    damage(parts)
    with pytest.raises(InputError, match=message):
        read(parts)


def alike(folder: Path, edit: Callable = lambda document: None) -> Path:
    """The file of six images of one size with two objects each, which is changed."""
    return edited(write_coco_folder(folder, range(0, 36, 6)) / ONE, edit)


def rewritten(kind: str, rule: Callable, number: int) -> Callable:
    """A change of the boxes, (x, y, width, height), or of the points of the polygons of some annotations."""

    def edit(document: dict) -> None:
        for each in document['annotations'][:number]:
            if kind == 'boxes':
                each['bbox'] = list(rule(*each['bbox']))
            else:
                points = np.reshape(each['segmentation'], (-1, 2)).tolist()
                each['segmentation'] = [[value for point in points for value in rule(*point)]]

    return edit


LOOKS = {
    'boxes look like corners x1, y1, x2, y2 (': lambda x, y, w, h: (x, y, x + w, y + h),
    'boxes look like corners x1, y1, x2, y2 in place of centre and size (': lambda x, y, w, h: (
        (x - w) / 2, (y - h) / 2, x + w, y + h,
    ),
    'boxes look like shares of the width and height of the image (': lambda x, y, w, h: (
        x / WIDTH, y / HEIGHT, w / WIDTH, h / HEIGHT,
    ),
    'boxes look like width and height in place of the second corner (': lambda x, y, w, h: (x, y, w - x, h - y),
    'boxes look like centres x, y with width and height (': lambda x, y, w, h: (x + w / 2, y + h / 2, w, h),
    'polygons look as if x and y were exchanged (': lambda x, y: (y, x),
    'polygons look like shares of the width and height of the image (': lambda x, y: (x / WIDTH, y / HEIGHT),
    'polygons look as if they were of an image 2 times as large (': lambda x, y: (2 * x, 2 * y),
}  # fmt: skip


@pytest.mark.parametrize(('said', 'rule'), LOOKS.items(), ids=LOOKS)
def test_what_most_entries_look_like(said: str, rule: Callable, tmp_path: Path) -> None:
    for number in (7, 9):  # of 12, two thirds of which are most
        found = likeness(read_coco_file(alike(tmp_path / str(number), rewritten(said.split()[0], rule, number))))
        assert [line.startswith(f'{said}9 of 12 objects)') for line in found] == [True] * (number == 9), found


def test_corners_without_masks(tmp_path: Path) -> None:
    def without_masks(document: dict) -> None:
        for each in document['annotations']:
            del each['segmentation']

    file = alike(tmp_path / 'parts', without_masks)
    assert not likeness(read_coco_file(file))
    (found,) = likeness(read_coco_file(edited(file, corners)))
    assert found.startswith('boxes look like corners x1, y1, x2, y2 (12 of 12 objects)')
    assert not likeness(read_coco_file(edited(file, lambda document: document.update(images=document['images'][:1]))))


def test_what_is_said_before_a_training(tmp_path: Path) -> None:
    swapped = 'polygons look as if x and y were exchanged ('
    file = alike(tmp_path / 'parts', rewritten('polygons', LOOKS[swapped], 12))
    for path in (file.parent / 'images').iterdir():
        Image.open(path).save(path, exif=UPRIGHT)  # the sizes are those before
    config = load_config(DETECTOR, data=DataArguments(str(file.parent)))
    said = '\n'.join(check_annotations(config, ('train_dataloader',)))
    for expected in (
        f'{swapped}10 of 10', '10 of 10 annotations: mask outside its box, such as annotation 1 of the image part',
        '5 of 5 images whose headers were read: image of another size', '96 x 120', 'exchanged (5 of 5 images)',
        'bioattn inspect-data',
    ):  # fmt: skip
        assert expected in said, said


def test_where_all_entries_are_faulty_they_are_listed(tmp_path: Path) -> None:
    file = alike(tmp_path / 'parts', lambda document: [image.update(width='wide') for image in document['images']])
    problems: list[Problem] = []
    with pytest.raises(InputError, match='has no images that can be used: 6 entries cannot'):
        read(file.parent, problems=problems)
    assert [problem.kind for problem in problems] == ['image malformed'] * 6


def test_entries_that_are_looked_at_are_spread() -> None:
    assert [spread(10, most) for most in (4, 10, None)] == [[0, 3, 6, 9], [*range(10)], [*range(10)]]
