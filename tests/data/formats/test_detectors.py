"""Own data in YOLO's and Pascal VOC's format: the same as in COCO's, their layouts, and what is refused."""

import json
import re
import shutil
from collections.abc import Callable
from itertools import starmap
from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image
from pycocotools import mask as coco_mask

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.data.formats.coco import likeness, mask_of, read_coco_file
from bioattn_mm.data.formats.detectors import read_objects
from bioattn_mm.data.formats.folders import OwnData, by_split, split_of_name
from bioattn_mm.data.formats.label_maps import read_masks
from bioattn_mm.data.image_files import read_size
from bioattn_mm.data.transforms import CheckedLoadImageFromFile
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.images import read_image

from ...own_folders import (
    CLASSES,
    UPRIGHT,
    coco,
    contents,
    draw,
    objects_of,
    write_coco_folder,
    write_images,
    write_voc_folder,
    write_yolo_folder,
)
from .conftest import put

SPLITS = dict(train=range(6), val=range(50, 53))


def read(folder: Path, with_mask: bool = False, **arguments: object) -> OwnData:
    return read_objects(DataArguments(str(folder), **arguments), with_mask)


@pytest.fixture(scope='module')
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same data in each format."""
    folder = tmp_path_factory.mktemp('formats')
    for split, seeds in SPLITS.items():
        names = write_images(folder / f'coco/{split}', seeds)
        (folder / f'coco/{split}.json').write_text(json.dumps(coco(seeds, names)))
    return dict(
        coco=folder / 'coco',
        yolo=write_yolo_folder(folder / 'yolo', **SPLITS),
        voc=write_voc_folder(folder / 'VOCdevkit/VOC2012', **SPLITS),
    )


@pytest.fixture
def folders(originals: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    return {name: Path(shutil.copytree(folder, tmp_path / name)) for name, folder in originals.items()}


@pytest.mark.parametrize('name', ['yolo', 'voc'])
def test_the_objects_are_those_of_the_same_data_in_coco(name: str, originals: dict[str, Path]) -> None:
    folder, with_mask = originals[name], name == 'yolo'
    before = {path: path.stat().st_mtime_ns for path in folder.rglob('*')}
    expected = contents(read(originals['coco'], with_mask))
    found = contents(read(folder.parent if name == 'voc' else folder, with_mask))
    assert list(found) == ['train', 'val']
    for split, content in found.items():
        objects, wanted = objects_of(content), objects_of(expected[split])
        assert objects.keys() == wanted.keys()
        for stem, of_image in wanted.items():
            for one, other in zip(objects[stem], of_image, strict=True):
                assert one[0] == other[0] and (not with_mask or (one[2] == other[2]).all())
                np.testing.assert_allclose(one[1], other[1], atol=1e-4)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob('*')} == before


def test_masks_of_voc_are_those_of_the_label_maps(originals: dict[str, Path]) -> None:
    content = contents(read(originals['voc'], True))['val']
    for stem, objects in objects_of(content).items():
        numbers = np.asarray(Image.open(originals['voc'] / f'SegmentationObject/{stem}.png'))
        assert all((mask == (numbers == number)).all() for number, (_, _, mask) in enumerate(objects, 1))
    assert all(each.area == coco_mask.area(mask_of(each)) for each in content.annotations)


def test_difficult_objects_are_ignored(folders: dict[str, Path]) -> None:
    edit('Annotations/part_050.xml', '<difficult>0', '<difficult>1')(folders['voc'])
    own = read(folders['voc'])
    assert '1 of 6 objects are difficult: they count neither as found nor as missed (iscrowd)' in ' '.join(own.notes)
    init_default_scope('mmdet')
    dataset = DATASETS.build(dict(own.datasets['val'], pipeline=[], metainfo=dict(classes=CLASSES)))
    assert [each['ignore_flag'] for each in dataset.get_data_info(0)['instances']] == [1, 0]


def edit(path: str, pattern: str, new: str) -> Callable:
    """A change of the first place of a file where a pattern stands."""

    def apply(folder: Path) -> None:
        text, count = re.subn(pattern, new, (folder / path).read_text(), count=1)
        assert count
        (folder / path).write_text(text)

    return apply


def remove(path: str) -> Callable:
    return lambda folder: shutil.rmtree(folder / path) if (folder / path).is_dir() else (folder / path).unlink()


def yolo(places: str, files: dict[str, str], splits: str = 'train val') -> Callable:
    """Writes images and labels into places, and files in place of `data.yaml`."""

    def write(folder: Path) -> None:
        write_yolo_folder(folder, *places.split(), **dict(zip(splits.split(), SPLITS.values())))
        (folder / 'data.yaml').unlink()
        for name, text in files.items():
            put(name, text)(folder)

    return write


def voc(places: str, lists: dict[str, str]) -> Callable:
    """Writes images and XML files into places, and lists of images in place of those of the splits."""

    def write(folder: Path) -> None:
        write_voc_folder(folder, *places.split(), **SPLITS)
        for path in (folder / 'ImageSets/Main').iterdir():
            path.unlink()
        for name, text in lists.items():
            put(f'ImageSets/Main/{name}.txt', text)(folder)

    return write


def capital_suffixes(folder: Path, write: Callable) -> None:
    write(folder)
    for path in folder.glob('*.jpg'):
        path.rename(path.with_suffix('.JPG'))


NAMES = '\n'.join(CLASSES)
YAML_NAMES = f'names: [{", ".join(CLASSES)}]\n'
STEMS = {split: [f'part_{seed:03d}' for seed in seeds] for split, seeds in SPLITS.items()}
TRAIN, VAL = ('\n'.join(stems) for stems in STEMS.values())
OF_DARKNET = {
    'obj.data': 'classes = 3\ntrain = data/train.txt\nvalid =\nnames = data/obj.names\nbackup = backup/\n',
    'obj.names': NAMES,
    'train.txt': ''.join(f'data\\obj\\{stem}.jpg\n' for stems in STEMS.values() for stem in stems),
}
# The images of a split in a text file, names by index, `path`, and a split that is not there.
LISTED = {
    'train.txt': ''.join(f'./images/train/{stem}.jpg\n' for stem in STEMS['train']),
    'data.yaml': 'path: /moved\ntrain: train.txt\nval: [../images/val]\ntest: images/test\nnc: 3\nnames:\n'
    + ''.join(f'  {index}: {name}\n' for index, name in enumerate(CLASSES)),
}
ROBOFLOW = {'data.yaml': f'train: ../train/images\nval: ../valid/images\n{YAML_NAMES}'}
# Splits that no data file names, and images that are of none.
CAPITALS = {'classes.txt': NAMES, 'images/unlabelled/x.jpg': ''}
VOC = 'JPEGImages Annotations'
DRAWN = 8, 1  # images of training and validation, where a tenth is drawn
LAYOUTS = [
    (yolo('images/{} labels/{}', LISTED), (6, 3), ''),
    (yolo('{}/images {}/labels', ROBOFLOW, 'train valid'), (6, 3), ''),
    (yolo('images/{} labels/{}', CAPITALS, 'Train Val'), (6, 3), 'not used: the images of .*images/unlabelled'),
    (yolo('. .', {'classes.txt': NAMES}), DRAWN, ''),  # LabelImg
    (lambda folder: capital_suffixes(folder, yolo('. .', {'classes.txt': NAMES})), DRAWN, ''),  # and a camera
    (yolo('images labels', {'labels/classes.txt': NAMES}), DRAWN, ''),
    (yolo('obj obj', OF_DARKNET), DRAWN, ''),
    (voc('{} {}', {}), (6, 3), ''),  # XML files beside the images, as Roboflow exports
    (voc(VOC, dict(Train=TRAIN, Validation=re.sub('(.+)', r'"\1"', VAL))), (6, 3), ''),
    (voc(VOC, dict(mine=TRAIN)), DRAWN, 'mine.txt, as its name says no'),
]


@pytest.mark.parametrize(('write', 'counts', 'note'), LAYOUTS)
def test_layouts(write: Callable, counts: tuple, note: str, originals: dict[str, Path], tmp_path: Path) -> None:
    before = {}
    for content in contents(read(originals['coco'])).values():
        before.update(objects_of(content))
    write(tmp_path)
    own = read(tmp_path)
    assert own.classes == CLASSES and re.search(note, ' '.join(own.notes))
    after = {split: objects_of(content) for split, content in contents(own).items()}
    assert tuple(map(len, after.values())) == counts and not set(after['train']) & set(after['val'])
    for objects in after.values():
        for stem, of_image in objects.items():
            for one, other in zip(of_image, before[stem], strict=True):
                np.testing.assert_allclose(one[1], other[1], atol=1e-4)
    assert {split: len(files) for split, files in own.files.items()} == dict(zip(SPLITS, counts))


def test_what_a_split_is_called() -> None:
    for split, names in dict(
        train='train Train TRAINING train2017 TrainImages 1_train trainval', val='val Valid validation_2020',
        test='Testing test-dev', none='trains contest valve images latest',
    ).items():  # fmt: skip
        assert {split_of_name(name) for name in names.split()} == {split.replace('none', '')}
    # The plainest name is the split, and two alike are refused.
    names = ['cat_train', 'train', 'trainval', 'Val2012', 'cat_val', 'other']
    assert by_split(names, Path('lists')) == dict(train='train', val='Val2012')
    with pytest.raises(InputError, match='lists has train1 and train2, each of which could be train'):
        by_split(['train1', 'train2'], Path('lists'))


def in_chinese(folder: Path) -> None:
    for path in (folder / 'Annotations').iterdir():
        text = "<?xml version='1.0' encoding='GB2312'?>" + path.read_text().replace('bolt', '螺栓镕')
        path.write_bytes(text.encode('gb18030'))


OF_CVAT = '# label:color_rgb:parts:actions\nwasher:48,112,32::\nbackground:0,0,0::\nnut:1,2,3::\nbolt:4,5,6::\n'
NAMED = [
    ('yolo', edit('data.yaml', ', '.join(CLASSES), '12:30, no, 007'), ('12:30', 'no', '007')),
    ('yolo', edit('data.yaml', r'\[.*\]', '{0: no, 1: 007, 2: yes}'), ('no', '007', 'yes')),
    ('voc', put('classes.txt', 'nut\nbolt\n#8 screw\nwasher\n'), ('nut', 'bolt', '#8 screw', 'washer')),
    ('voc', in_chinese, ('nut', 'washer', '螺栓镕')),
    ('voc', put('labelmap.txt', OF_CVAT + 'nut:1,2,3::\n#8 bolt:7,8,9::'), ('washer', 'nut', 'bolt', '#8 bolt')),
    (
        'voc', put('labelmap.txt', "# label : color_rgb : 'body' parts : actions\nbackground:::\nwasher:::\n"
        'nut:::\nbolt:::\n'), ('washer', 'nut', 'bolt'),
    ),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'change', 'classes'), NAMED)
def test_names_of_classes(name: str, change: Callable, classes: tuple, folders: dict[str, Path]) -> None:
    change(folders[name])
    assert read(folders[name]).classes == classes


def test_copies_in_hidden_folders_are_not_read(folders: dict[str, Path]) -> None:
    """As Jupyter makes them of the files that are edited in it, and macOS of all on some file systems."""
    for folder in folders.values():
        before = read(folder)
        for path in [path for path in folder.rglob('*') if path.is_file()]:
            path.with_name(f'._{path.name}').write_bytes(b'\xff\x00 no text')
        for path in [path for path in folder.rglob('*') if path.suffix in ('.json', '.txt', '.xml', '.jpg')]:
            hidden = path.parent / '.ipynb_checkpoints'
            hidden.mkdir(exist_ok=True)
            shutil.copy(path, hidden / f'{path.stem}-checkpoint{path.suffix}')
        assert read(folder).notes == before.notes


def test_images_without_labels_have_no_objects(folders: dict[str, Path]) -> None:
    (folders['yolo'] / 'labels/train/part_003.txt').unlink()
    (folders['yolo'] / 'images/train/part_004.jpg').unlink()
    own = read(folders['yolo'])
    train = objects_of(contents(own)['train'])
    assert len(train) == 5 and train['part_003'] == []
    assert any('1 of 5 images have no labels, and no objects' in note for note in own.notes)
    # Images may be NumPy's arrays, whose size Pillow does not know. They have the same objects.
    for path in (folders['yolo'] / 'images/train').iterdir():
        np.save(path.with_suffix('.npy'), np.asarray(Image.open(path)))
        path.unlink()
    arrays = objects_of(contents(read(folders['yolo']))['train'])
    assert {stem: len(objects) for stem, objects in arrays.items()} == {stem: len(train[stem]) for stem in train}


def test_many_classes_and_a_model_of_masks(folders: dict[str, Path]) -> None:
    names = [*CLASSES, *map(str, range(300))]
    put('classes.txt', '\n'.join(names))(folders['voc'])
    assert read(folders['voc']).classes == tuple(names)
    # A split without objects is none of boxes alone.
    for path in (folders['yolo'] / 'labels/val').iterdir():
        path.write_text('')
    for path in (folders['yolo'] / 'labels/train').iterdir():
        path.write_text('1 .1 .1 .5 .1 .5 .5')
    assert read_objects(DataArguments(str(folders['yolo'])), with_mask=True).classes == CLASSES


@pytest.mark.parametrize('suffix', ['.jpg', '.png', '.tif', '.webp'])
def test_a_turned_image_has_the_size_in_which_it_is_loaded(suffix: str, folders: dict[str, Path]) -> None:
    path = folders['yolo'] / 'images/val/part_050.jpg'
    image = Image.open(path).convert('RGB')
    path.unlink()
    path = path.with_suffix(suffix)
    image.save(path, exif=UPRIGHT)
    content = contents(read(folders['yolo']))['val']
    loaded = CheckedLoadImageFromFile().transform(dict(img_path=str(path)))['img']
    assert np.array_equal(loaded, read_image(path))  # as the model is run on
    assert (content.images[0].height, content.images[0].width) == loaded.shape[:2] == read_size(path, True)[::-1]


def test_a_segmentor_reads_vocs_lists(folders: dict[str, Path]) -> None:
    put('classes.txt', '\n'.join(('background', *CLASSES)))(folders['voc'])
    put('ImageSets/Segmentation/train.txt', 'part_000\npart_001\n')(folders['voc'])
    own = read_masks(DataArguments(str(folders['voc'])))
    lists = [Path(own.datasets[split]['ann_file']).read_text().split() for split in SPLITS]
    assert lists == [['part_000.jpg', 'part_001.jpg'], [f'part_{seed:03d}.jpg' for seed in SPLITS['val']]]


def years(folder: Path) -> None:
    shutil.rmtree(folder)
    for year in ('VOC2007', 'VOC2012'):
        write_voc_folder(folder / year, train=range(2))


def every_xml(text: str) -> Callable:
    return lambda folder: [path.write_text(text) for path in (folder / 'Annotations').iterdir()]


def broken_link(folder: Path) -> None:
    """XML files that no lists name, one of which leads nowhere."""
    shutil.rmtree(folder / 'ImageSets')
    (folder / XML).unlink()
    (folder / XML).symlink_to('absent.xml')


LABELS, XML, LIST = 'labels/train/part_002.txt', 'Annotations/part_002.xml', 'ImageSets/Main/train.txt'
# Each row has a change of the folder, and what the refusal says.
BAD_YOLO = [
    (put(LABELS, '0 .5 .5 .1 .1\n3 .5 .5 .1 .1'), '002.txt: line 2: class 3, expected 0 to 2 for the 3 names of'),
    (put(LABELS, 'nut .5 .5 .1 .1'), "002.txt: line 1: 'nut .5 .5 .1 .1', exp"),
    (put(LABELS, '1.5 .5 .5 .1 .1'), 'part_002.txt: line 1: class 1.5, expected 0 to 2'),
    (put(LABELS, '\n1 .5 1.5 .1 .1'), '002.txt: line 2: 1.5, expected shares of the width and height, 0 to 1'),
    (put(LABELS, '1 nan .5 .1 .1'), 'part_002.txt: line 1: nan, expected shares'),
    (put(LABELS, '1 .5 .5 .1'), "002.txt: line 1: '1 .5 .5 .1', expected CLASS X Y"),
    (put(LABELS, b'\xff\xfe'), 'part_002.txt: no text in UTF-8'),
    (put('images/train/part_002.jpg', 'no'), 'part_002.jpg: cannot identify image file'),
    (put('data.yaml', 'names: [a\ntrain: x'), 'data.yaml, line 2, is no YAML: '),
    (put('data.yaml', 'train: images/train\nnames: {0: a, 2: b}'), 'names has the indices 0, 2, expected 0 to 1'),
    (edit('data.yaml', 'images/val', 'images/none'), 'data.yaml names images/none as val, '),
    (edit('data.yaml', 'nut', 'bolt'), "names has 'bolt', expected each class to have"),
    (edit('data.yaml', 'names', 'kpt_shape: [3, x]\nnames'), r"kpt_shape is \['3', 'x'\], expected two"),
    (edit('data.yaml', 'names', 'kpt_shape: [3, 2]\nnames'), 'CLASS X Y WIDTH HEIGHT, and 6 numbers of key'),
    (lambda folder: shutil.copy(folder / 'data.yaml', folder / 'b.yaml'), "has 2 data files of YOLO's: "),
    (edit('data.yaml', 'names', 'kpt_shape: 17\nnames'), "kpt_shape is '17', expected two numbers such as"),
    (remove('data.yaml'), 'and no names of classes: expected a '),
    (remove('labels/train'), 'train has labels: expected text files such as .*labels/train/part_000.txt'),
    (
        lambda path: [each(path) for each in (*starmap(put, LISTED.items()), remove('images/train/part_001.jpg'))],
        'train.txt: line 2: there is no .*images/train/part_001.jpg',
    ),
    (
        lambda folder: write_coco_folder(folder / 'more', range(2)),
        r"has annotations in 2 formats, YOLO's \(\S+data.yaml\) and COCO's \(\S+annotations.json\): name one of",
    ),
]
BAD_VOC = [
    (edit(XML, '</object>', ''), r'part_002.xml: mismatched tag: line \d'),
    (put(XML, '<?xml version="1.0" encoding="none"?>\n<a/>'), ': unknown encoding: none'),
    (broken_link, r'part_002.xml: \[Errno 2\] No such file'),
    (put(XML, '<html/>'), 'part_002.xml: <html>, expected <annotation>'),
    (put('classes.txt', 'bolt\nnut'), r"xml: object \d: 'washer' is no class, expected bolt, nut"),
    (edit(XML, '<name>.*?</name>', ''), 'xml: object 1: its name is '),
    (edit(XML, '<xmin>.*?</xmin>', ''), r'xml: object 1, \S+: no xmin'),
    (edit(XML, '<ymax>', '<ymax>a'), r"xml: object 1, \S+: ymax is 'a\d+', expected a num"),
    (remove('JPEGImages/part_002.jpg'), 'Main/train.txt: line 3: there is no .*JPEGImages/part_002.jpg'),
    (remove(XML), 'train.txt: line 3: there is no .*part_002.xml'),
    (every_xml('<annotation/>'), 'Annotations has 9 XML files, none of which has an object'),
    (every_xml('<broken>'), 'none of which has an object that can be used, such as .*part_.*xml: .*line '),
    (years, 'voc has VOC2007, VOC2012: name one with --data'),
    (put(LIST, ''), 'Main/train.txt is empty: expected names of images, one a line'),
    (
        lambda folder: write_yolo_folder(folder, train=range(2)),
        r"annotations in 2 formats, YOLO's \(\S+data.yaml\) and VOC's \(\S+Annotations\)",
    ),
]
BAD = [('yolo', *row) for row in BAD_YOLO] + [('voc', *row) for row in BAD_VOC]


@pytest.mark.parametrize(('name', 'damage', 'message'), BAD)
def test_what_is_refused(name: str, damage: Callable, message: str, folders: dict[str, Path]) -> None:
    damage(folders[name])
    with pytest.raises(InputError, match=message) as error:
        read(folders[name])
    assert '\n' not in str(error.value)


def test_label_maps_of_objects_that_cannot_be_used(folders: dict[str, Path]) -> None:
    folder = folders['voc'] / 'SegmentationObject'
    Image.fromarray(np.zeros((5, 7), np.uint8)).save(folder / 'part_000.png')
    (folder / 'part_001.png').write_text('no image')
    (folder / 'part_002.png').unlink()
    numbers = np.asarray(Image.open(folder / 'part_003.png'))
    Image.fromarray(np.where(numbers == 1, 255, numbers)).save(folder / 'part_003.png')
    Image.new('RGB', draw(4)[0].shape[1::-1], (1, 2, 3)).save(folder / 'part_004.png')
    problems = []
    own = read(folders['voc'], True, problems=problems)
    assert sorted((problem.kind, Path(problem.file).stem) for problem in problems) == [
        ('label map missing', 'part_002'), ('label map of another shape', 'part_000'),
        ('label map of another shape', 'part_004'), ('label map unreadable', 'part_001'),
    ]  # fmt: skip
    assert {stem: len(objects) for stem, objects in objects_of(contents(own)['train']).items()} == dict(
        part_000=0, part_003=2, part_004=0, part_005=2
    )


def test_one_of_two_formats_is_named(folders: dict[str, Path]) -> None:
    # Labels without names are no format, as in the folder of COCO that YOLO's programs download.
    shutil.copytree(folders['yolo'] / 'labels', folders['coco'] / 'labels')
    assert contents(read(folders['coco'])).keys() == {'train', 'val'}
    folder = folders['yolo']
    names = write_images(folder / 'images', range(4))
    put('annotations.json', json.dumps(coco(range(4), names)))(folder)
    for path, number in (('data.yaml', 6), ('annotations.json', 3)):
        assert len(contents(read(folder / path))['train'].images) == number
    write_voc_folder(folder, train=range(3))
    assert len(contents(read(folder / 'Annotations'))['train'].images) == 2


def test_sizes_in_place_of_corners_in_xml(folders: dict[str, Path]) -> None:
    size = '<xmin>51</xmin><ymin>11</ymin><xmax>30</xmax><ymax>30</ymax>'
    for path in (folders['voc'] / 'Annotations').iterdir():
        path.write_text(re.sub('<xmin>.*</ymax>', size, path.read_text()))
    (said,) = likeness(read_coco_file(read(folders['voc']).datasets['train']['ann_file']))
    assert said.startswith('boxes look like width and height in place of the second corner (12 of 12 objects)')


SCORE, TRACK, KEYPOINTS = 'end with a score', 'the number of a track', 'have keypoints'
LINES = [
    ('.4 .4 .3 .3 .87', SCORE),
    ('.4 .4 .3 .3 17', SCORE),
    # A number of a track follows a box inside of the image alone, wide or high; else these are three points.
    ('.5 .8 .8 .3 .9 7', TRACK),
    ('.8 .5 .3 .8 .9 7', TRACK),
    ('.1 .1 .5 .1 .5 1', None),
    ('.5 .8 .1 .6 .9 1', None),
    ('.8 .5 .6 .1 .9 1', None),
    ('.5 .5 .2 .8 .9 .7', None),
    ('.1 .1 .5 .1 .5 .6 .1 .6', None),
    # Keypoints are in the box, but for those that are not labelled.
    ('.5 .5 .2 .8 .55 .85 2 .45 .2 1', KEYPOINTS),
    ('.5 .5 .8 .2 .85 .55 2 .2 .45 1', KEYPOINTS),
    ('.5 .5 .2 .8 0 0 0 .45 .2 1', KEYPOINTS),
    ('.5 .5 .2 .8 .85 .55 1 .45 .2 1', None),
    ('.5 .5 .8 .2 .55 .85 1 .2 .45 1', None),
    ('.5 .5 .2 .8 .55 .85 .3 .45 .2 1', None),
    ('.1 .5 .3 .6 .2 .8 0 .9 0 1', None),
]


@pytest.mark.parametrize(('line', 'note'), LINES)
def test_what_follows_a_box_is_no_polygon(line: str, note: str | None, folders: dict[str, Path]) -> None:
    put('labels/val/part_050.txt', f'1 {line}\n')(folders['yolo'])
    own = read(folders['yolo'])
    numbers = np.array(line.split(), float)
    if note is None:
        points = numbers.reshape(-1, 2)
        low, size = points.min(0), np.ptp(points, 0)
    else:
        low, size = numbers[:2] - numbers[2:4] / 2, numbers[2:4]
    sides = draw(50)[0].shape[1::-1]
    ((label, box, _),) = objects_of(contents(own)['val'])['part_050']
    assert label == 'nut' and box == pytest.approx(np.concatenate([low * sides, size * sides]), abs=1e-3)
    notes = ' '.join(own.notes)
    assert note in notes if note else SCORE not in notes and KEYPOINTS not in notes
