"""Own data in YOLO's and Pascal VOC's format: the same as in COCO's, their layouts, and what is refused."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mmdet.datasets.xml_style import XMLDataset
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
    coco,
    contents,
    draw,
    objects_of,
    write_coco_folder,
    write_images,
    write_voc_folder,
    write_yolo_folder,
)

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
    """Copies, to be changed."""
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


def test_difficult_objects_are_ignored_as_by_mmdet(folders: dict[str, Path]) -> None:
    edit('Annotations/part_050.xml', ('<difficult>0', '<difficult>1'))(folders['voc'])
    own = read(folders['voc'])
    assert '1 of 6 objects are difficult: they count neither as found nor as missed (iscrowd)' in ' '.join(own.notes)
    init_default_scope('mmdet')
    dataset = DATASETS.build(dict(own.datasets['val'], pipeline=[], metainfo=dict(classes=CLASSES)))
    theirs = XMLDataset(
        data_root=str(folders['voc']), ann_file='ImageSets/Main/val.txt', data_prefix=dict(sub_data_root=''),
        pipeline=[], metainfo=dict(classes=CLASSES),
    )  # fmt: skip
    flags = [[each['ignore_flag'] for each in data.get_data_info(0)['instances']] for data in (dataset, theirs)]
    assert flags[0] == flags[1] == [1, 0]


def edit(path: str, *changes: tuple[str, str]) -> Callable:
    """A change of the text of a file."""

    def apply(folder: Path) -> None:
        text = (folder / path).read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (folder / path).write_text(text)

    return apply


def put(path: str, text: str | bytes) -> Callable:
    """A file of a content."""
    return lambda folder: (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())


def remove(path: str) -> Callable:
    return lambda folder: shutil.rmtree(folder / path) if (folder / path).is_dir() else (folder / path).unlink()


def listed(folder: Path) -> None:
    """The images of a split in a text file, names by index, `path`, and a split that is not there."""
    images = sorted((folder / 'images/train').iterdir())
    put('train.txt', '\n'.join(f'./images/train/{image.name}' for image in images))(folder)
    names = '\n'.join(f'  {index}: {name}' for index, name in enumerate(CLASSES))
    lines = 'path: /moved\ntrain: train.txt\nval: [../images/val]\ntest: images/test\nnc: 3\nnames:\n'
    put('data.yaml', lines + names)(folder)


def roboflow(folder: Path) -> None:
    """As Roboflow exports."""
    for split, name in (('train', 'train'), ('val', 'valid')):
        for kind in ('images', 'labels'):
            (folder / name).mkdir(exist_ok=True)
            (folder / kind / split).rename(folder / name / kind)
    names = (folder / 'data.yaml').read_text().splitlines()[-1]
    put('data.yaml', f'train: ../train/images\nval: ../valid/images\n{names}\n')(folder)


def in_capitals(folder: Path) -> None:
    """Splits that `data.yaml` does not name, and images that are of none."""
    for path in (*folder.glob('images/*'), *folder.glob('labels/*')):
        path.rename(path.with_name(path.name.capitalize()))
    shutil.copytree(folder / 'images/Val', folder / 'images/unlabelled')
    (folder / 'data.yaml').rename(folder / 'classes.txt')
    put('classes.txt', '\n'.join(CLASSES))(folder)


def flat(images: str, labels: str, **files: str) -> Callable:
    """The images and labels of all splits together, with files in place of `data.yaml`."""

    def change(folder: Path) -> None:
        for kind, place in (('images', images), ('labels', labels)):
            (folder / kind).rename(folder / f'{kind} before')
            (folder / place).mkdir(exist_ok=True)
            for path in sorted((folder / f'{kind} before').glob('*/*')):
                path.rename(folder / place / path.name)
            shutil.rmtree(folder / f'{kind} before')
        (folder / 'data.yaml').unlink()
        for name, text in files.items():
            put(name.replace('__', '/').replace('_', '.'), text)(folder)

    return change


def lists_named(*names: str, quote: str = '') -> Callable:
    """The lists of VOC's splits under other names."""

    def change(folder: Path) -> None:
        lines = {split: [f'{quote}part_{seed:03d}{quote}' for seed in seeds] for split, seeds in SPLITS.items()}
        for split, name in zip(lines, names):
            (folder / f'ImageSets/Main/{split}.txt').unlink()
            put(f'ImageSets/Main/{name}.txt', '\n'.join(lines[split]))(folder)

    return change


def beside(folder: Path) -> None:
    """XML files beside the images, as Roboflow exports."""
    for split in ('train', 'val'):
        (folder / split).mkdir()
        for stem in (folder / f'ImageSets/Main/{split}.txt').read_text().split():
            for path in (f'JPEGImages/{stem}.jpg', f'Annotations/{stem}.xml'):
                (folder / path).rename(folder / split / Path(path).name)
    for name in ('JPEGImages', 'Annotations', 'ImageSets'):
        shutil.rmtree(folder / name)


NAMES = '\n'.join(CLASSES)
OF_DARKNET = dict(
    obj_data='classes = 3\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n', obj_names=NAMES,
    train_txt=''.join(f'data\\obj\\part_{seed:03d}.jpg\n' for seeds in SPLITS.values() for seed in seeds),
)  # fmt: skip
DRAWN = 8, 1  # images of training and validation, where a tenth is drawn
LAYOUTS = [
    ('yolo', listed, (6, 3), ''),
    ('yolo', roboflow, (6, 3), ''),
    ('yolo', in_capitals, (6, 3), 'not used: the images of .*images/unlabelled'),
    ('yolo', flat('.', '.', classes_txt=NAMES), DRAWN, ''),  # LabelImg
    ('yolo', flat('images', 'labels', labels__classes_txt=NAMES), DRAWN, ''),
    ('yolo', flat('obj', 'obj', **OF_DARKNET), DRAWN, ''),
    ('voc', beside, (6, 3), ''),
    ('voc', lists_named('Train', 'Validation'), (6, 3), ''),
    ('voc', lists_named('Train', 'Validation', quote='"'), (6, 3), ''),
    (
        'voc', lambda folder: (remove('ImageSets/Main/val.txt')(folder), lists_named('mine')(folder)),
        DRAWN, 'mine.txt, as its name says no',
    ),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'change', 'counts', 'note'), LAYOUTS)
def test_layouts(name: str, change: Callable, counts: tuple, note: str, folders: dict[str, Path]) -> None:
    before = {}
    for content in contents(read(folders[name])).values():
        before.update(objects_of(content))
    change(folders[name])
    own = read(folders[name])
    assert own.classes == CLASSES and re.search(note, ' '.join(own.notes))
    after = {split: objects_of(content) for split, content in contents(own).items()}
    assert tuple(map(len, after.values())) == counts and not set(after['train']) & set(after['val'])
    for objects in after.values():
        for stem, of_image in objects.items():
            assert all((one[1] == other[1]).all() for one, other in zip(of_image, before[stem], strict=True))
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
    ('yolo', flat('images', 'labels', classes_txt='nut\n#8 screw\nwasher\n'), ('nut', '#8 screw', 'washer')),
    ('yolo', edit('data.yaml', (', '.join(CLASSES), '12:30, no, 007')), ('12:30', 'no', '007')),
    ('yolo', edit('data.yaml', (f'[{", ".join(CLASSES)}]', '{0: no, 1: 007, 2: yes}')), ('no', '007', 'yes')),
    ('voc', in_chinese, ('nut', 'washer', '螺栓镕')),
    ('voc', put('labelmap.txt', OF_CVAT), ('washer', 'nut', 'bolt')),
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
    """As Jupyter makes them of the files that are edited in it."""
    for folder in folders.values():
        before = read(folder)
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


@pytest.mark.parametrize('suffix', ['.jpg', '.png', '.tif', '.webp'])
def test_a_turned_image_has_the_size_in_which_it_is_loaded(suffix: str, folders: dict[str, Path]) -> None:
    path = folders['yolo'] / 'images/val/part_050.jpg'
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.open(path).convert('RGB')
    path.unlink()
    path = path.with_suffix(suffix)
    image.save(path, exif=exif)
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
    (edit('data.yaml', ('images/val', 'images/none')), 'data.yaml names images/none as val, '),
    (edit('data.yaml', ('nut', 'bolt')), "names has 'bolt', expected each class to have"),
    (edit('data.yaml', ('names', 'kpt_shape: [3, 2]\nnames')), 'CLASS X Y WIDTH HEIGHT, and 6 numbers of key'),
    (lambda folder: shutil.copy(folder / 'data.yaml', folder / 'b.yaml'), "has 2 data files of YOLO's: "),
    (remove('data.yaml'), 'and no names of classes: expected a '),
    (remove('labels/train'), 'train has labels: expected text files such as .*labels/train/part_000.txt'),
    (
        lambda folder: (listed(folder), (folder / 'images/train/part_001.jpg').unlink()),
        'train.txt: line 2: there is no .*images/train/part_001.jpg',
    ),
    (
        lambda folder: write_coco_folder(folder / 'more', range(2)),
        r"has annotations in 2 formats, YOLO's \(\S+data.yaml\) and COCO's \(\S+annotations.json\): name one of",
    ),
]
BAD_VOC = [
    (edit(XML, ('</object>', '')), r'part_002.xml: mismatched tag: line \d'),
    (put(XML, '<?xml version="1.0" encoding="none"?>\n<a/>'), ': unknown encoding: none'),
    (put(XML, '<html/>'), 'part_002.xml: <html>, expected <annotation>'),
    (put('classes.txt', 'bolt\nnut'), r"xml: object \d: 'washer' is no class, expected bolt, nut"),
    (edit(XML, ('<name>', '<n>'), ('</name>', '</n>')), 'xml: object 1: its name is '),
    (edit(XML, ('<xmin>', '<x>'), ('</xmin>', '</x>')), r'xml: object 1, \S+: no xmin'),
    (edit(XML, ('<ymax>', '<ymax>a')), r"xml: object 1, \S+: ymax is 'a\d+', expected a num"),
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


def test_sizes_in_place_of_corners_in_xml(tmp_path: Path) -> None:
    def looks_like(number: int) -> list[str]:
        folder = write_voc_folder(tmp_path / str(number), train=range(number), val=range(50, 51))
        for path in (folder / 'Annotations').iterdir():
            corners = ''.join(f'<{name}>{value}</{name}>' for name, value in zip(('xmin', 'ymin'), (51, 11)))
            corners += '<xmax>30</xmax><ymax>30</ymax>'
            path.write_text(re.sub('<xmin>.*</ymax>', corners, path.read_text()))
        return likeness(read_coco_file(read(folder).datasets['train']['ann_file']))

    assert not looks_like(1)  # two objects are too few to say it
    (said,) = looks_like(4)
    assert said.startswith('boxes look like width and height in place of the second corner (8 of 8 objects)')


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
