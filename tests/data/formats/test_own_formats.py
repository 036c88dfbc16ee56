"""Own data in YOLO's and Pascal VOC's format beside the same in COCO's, and what is wrong with them."""

import json
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
from bioattn_mm.data.formats.coco import mask_of
from bioattn_mm.data.formats.detectors import read_objects
from bioattn_mm.data.formats.folders import OwnData
from bioattn_mm.data.formats.label_maps import read_masks
from bioattn_mm.data.formats.yolo import KEYPOINTS, SCORE, TRACK, _what_follows_box
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

SEEDS, VAL_SEEDS = range(6), range(50, 53)


def read(folder: Path, with_mask: bool = False, **arguments: object) -> OwnData:
    return read_objects(DataArguments(str(folder), **arguments), with_mask)


def as_coco(folder: Path) -> Path:
    """The same images and objects in COCO's format."""
    for split, seeds in (('train', SEEDS), ('val', VAL_SEEDS)):
        names = write_images(folder / split, seeds)
        (folder / f'{split}.json').write_text(json.dumps(coco(seeds, names)))
    return folder


@pytest.fixture(scope='module')
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same data in each format."""
    folder = tmp_path_factory.mktemp('formats')
    splits = dict(train=SEEDS, val=VAL_SEEDS)
    return dict(
        coco=as_coco(folder / 'coco'),
        yolo=write_yolo_folder(folder / 'yolo', **splits),
        voc=write_voc_folder(folder / 'VOCdevkit/VOC2012', **splits),
    )


@pytest.fixture
def folders(originals: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Copies, to be changed."""
    return {name: Path(shutil.copytree(folder, tmp_path / name)) for name, folder in originals.items()}


@pytest.mark.parametrize('name', ['yolo', 'voc'])
def test_the_objects_are_those_of_the_same_data_in_coco(name: str, originals: dict[str, Path]) -> None:
    folder = originals[name]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob('*')}
    expected = contents(read(originals['coco']))
    found = contents(read(folder.parent if name == 'voc' else folder))
    assert list(found) == ['train', 'val']
    for split, content in found.items():
        objects, wanted = objects_of(content), objects_of(expected[split])
        assert objects.keys() == wanted.keys()
        for stem, of_image in wanted.items():
            assert [each[0] for each in objects[stem]] == [each[0] for each in of_image]
            for one, other in zip(objects[stem], of_image):
                np.testing.assert_allclose(one[1], other[1], atol=1e-4)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob('*')} == before


def test_polygons_of_yolo_are_those_of_coco(originals: dict[str, Path]) -> None:
    found, expected = (contents(read(originals[name], True))['val'] for name in ('yolo', 'coco'))
    wanted = objects_of(expected)
    for stem, objects in objects_of(found).items():
        assert all((one[2] == other[2]).all() for one, other in zip(objects, wanted[stem], strict=True))


def test_masks_of_voc_are_those_of_the_label_maps(originals: dict[str, Path]) -> None:
    content = contents(read(originals['voc'], True))['val']
    for stem, objects in objects_of(content).items():
        numbers = np.asarray(Image.open(originals['voc'] / f'SegmentationObject/{stem}.png'))
        assert all((mask == (numbers == number)).all() for number, (_, _, mask) in enumerate(objects, 1))
    assert [each.area for each in content.annotations] == [
        coco_mask.area(mask_of(each)) for each in content.annotations
    ]


def test_difficult_objects_are_ignored_as_by_mmdet(folders: dict[str, Path]) -> None:
    path = folders['voc'] / 'Annotations/part_050.xml'
    path.write_text(path.read_text().replace('<difficult>0', '<difficult>1', 1))
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


def listed(folder: Path) -> None:
    """The images of a split in a text file, names by index, `path`, and a split that is not there."""
    images = sorted((folder / 'images/train').iterdir())
    (folder / 'train.txt').write_text('\n'.join(f'./images/train/{image.name}' for image in images))
    names = '\n'.join(f'  {index}: {name}' for index, name in enumerate(CLASSES))
    (folder / 'data.yaml').write_text(
        f'path: /moved\ntrain: train.txt\nval: [../images/val]\ntest: images/test\nnc: 3\nnames:\n{names}\n'
    )


def by_split(folder: Path) -> None:
    """As Roboflow exports."""
    for split, name in (('train', 'train'), ('val', 'valid')):
        for kind in ('images', 'labels'):
            (folder / name).mkdir(exist_ok=True)
            (folder / kind / split).rename(folder / name / kind)
    names = (folder / 'data.yaml').read_text().splitlines()[-1]
    (folder / 'data.yaml').write_text(f'train: ../train/images\nval: ../valid/images\n{names}\n')


def beside(folder: Path) -> None:
    """XML files beside the images, as Roboflow exports."""
    for split in ('train', 'val'):
        (folder / split).mkdir()
        for stem in (folder / f'ImageSets/Main/{split}.txt').read_text().split():
            for path in (f'JPEGImages/{stem}.jpg', f'Annotations/{stem}.xml'):
                (folder / path).rename(folder / split / Path(path).name)
    for name in ('JPEGImages', 'Annotations', 'ImageSets'):
        shutil.rmtree(folder / name)


@pytest.mark.parametrize(('name', 'change'), [('yolo', listed), ('yolo', by_split), ('voc', beside)])
def test_layouts(name: str, change: Callable, folders: dict[str, Path]) -> None:
    before = {}
    for content in contents(read(folders[name])).values():
        before.update(objects_of(content))
    change(folders[name])
    own = read(folders[name])
    assert own.classes == CLASSES
    after = {split: objects_of(content) for split, content in contents(own).items()}
    assert len(after['train']) == 6 and not set(after['train']) & set(after['val'])
    for objects in after.values():
        for stem, of_image in objects.items():
            assert all((one[1] == other[1]).all() for one, other in zip(of_image, before[stem], strict=True))


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
    (folders['voc'] / 'classes.txt').write_text('\n'.join(('background', *CLASSES)))
    (folders['voc'] / 'ImageSets/Segmentation/train.txt').write_text('part_000\npart_001\n')
    own = read_masks(DataArguments(str(folders['voc'])))
    lists = [Path(own.datasets[split]['ann_file']).read_text().split() for split in ('train', 'val')]
    assert lists == [['part_000.jpg', 'part_001.jpg'], [f'part_{seed:03d}.jpg' for seed in VAL_SEEDS]]


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


def years(folder: Path) -> None:
    shutil.rmtree(folder)
    for year in ('VOC2007', 'VOC2012'):
        write_voc_folder(folder / year, train=range(2))


LABELS, XML, LIST = 'labels/train/part_002.txt', 'Annotations/part_002.xml', 'ImageSets/Main/train.txt'
# The folder, what is done to it, and the line that is said.
BAD = {
    'class beyond the names': (
        'yolo', put(LABELS, '0 .5 .5 .1 .1\n3 .5 .5 .1 .1\n'),
        r'labels/train/part_002.txt: line 2: class 3, expected 0 to 2 for the 3 names of \S+data.yaml: repair it; ',
    ),
    'class that is no number': ('yolo', put(LABELS, 'nut .5 .5 .1 .1'), "002.txt: line 1: 'nut .5 .5 .1 .1', exp"),
    'half a class': ('yolo', put(LABELS, '1.5 .5 .5 .1 .1'), 'part_002.txt: line 1: class 1.5, expected 0 to 2'),
    'coordinate outside': (
        'yolo', put(LABELS, '\n1 .5 1.5 .1 .1'),
        'part_002.txt: line 2: 1.5, expected shares of the width and height, 0 to 1',
    ),
    'NaN': ('yolo', put(LABELS, '1 nan .5 .1 .1'), 'part_002.txt: line 1: nan, expected shares'),
    'three numbers': ('yolo', put(LABELS, '1 .5 .5 .1'), "002.txt: line 1: '1 .5 .5 .1', expected CLASS X Y"),
    'labels in no UTF-8': ('yolo', put(LABELS, b'\xff\xfe'), 'part_002.txt: no text in UTF-8'),
    'unreadable image': ('yolo', put('images/train/part_002.jpg', 'no'), 'part_002.jpg: cannot identify image file'),
    'no YAML': ('yolo', put('data.yaml', 'names: [a\ntrain: x'), 'data.yaml, line 2, is no YAML: '),
    'no folder': ('yolo', edit('data.yaml', ('images/val', 'images/none')), 'data.yaml names images/none as val, '),
    'gap in the names': (
        'yolo', put('data.yaml', 'train: images/train\nnames: {0: a, 2: b}'),
        'data.yaml: names has the indices 0, 2, expected 0 to 1, each once',
    ),
    'name twice': ('yolo', edit('data.yaml', ('nut', 'bolt')), "names has 'bolt', expected each class to have"),
    'keypoints': (
        'yolo', edit('data.yaml', ('names', 'kpt_shape: [3, 2]\nnames')),
        'expected CLASS X Y WIDTH HEIGHT, and 6 numbers of key',
    ),
    'two data files': (
        'yolo', lambda folder: shutil.copy(folder / 'data.yaml', folder / 'b.yaml'), "has 2 data files of YOLO's: ",
    ),
    'no names': ('yolo', lambda folder: (folder / 'data.yaml').unlink(), 'and no names of classes: expected a '),
    'no labels': (
        'yolo', lambda folder: shutil.rmtree(folder / 'labels/train'),
        'images/train has labels: expected text files such as .*labels/train/part_000.txt',
    ),
    'missing image of a list': (
        'yolo', lambda folder: (listed(folder), (folder / 'images/train/part_001.jpg').unlink()),
        'train.txt: line 2: there is no .*images/train/part_001.jpg',
    ),
    'YOLO and COCO': (
        'yolo', lambda folder: write_coco_folder(folder / 'more', range(2)),
        r"yolo has annotations in 2 formats, YOLO's \(\S+data.yaml\) and COCO's \(\S+annotations.json\): name one of",
    ),
    'VOC and YOLO': (
        'voc', lambda folder: write_yolo_folder(folder, train=range(2)),
        r"annotations in 2 formats, YOLO's \(\S+data.yaml\) and VOC's \(\S+Annotations\)",
    ),
    'malformed XML': ('voc', edit(XML, ('</object>', '')), r'part_002.xml: mismatched tag: line \d'),
    'no such encoding': ('voc', put(XML, '<?xml version="1.0" encoding="none"?>\n<a/>'), ': unknown encoding: none'),
    'another XML': ('voc', put(XML, '<html/>'), 'part_002.xml: <html>, expected <annotation>'),
    'class of no name': (
        'voc', lambda folder: put('classes.txt', 'bolt\nnut')(folder),
        r"xml: object \d: 'washer' is no class, expected bolt, nut",
    ),
    'object without name': ('voc', edit(XML, ('<name>', '<n>'), ('</name>', '</n>')), "xml: object 1: its name is "),
    'box without corner': ('voc', edit(XML, ('<xmin>', '<x>'), ('</xmin>', '</x>')), r'xml: object 1, \S+: no xmin'),
    'box of text': ('voc', edit(XML, ('<ymax>', '<ymax>a')), r"xml: object 1, \S+: ymax is 'a\d+', expected a num"),
    'missing image': (
        'voc', lambda folder: (folder / 'JPEGImages/part_002.jpg').unlink(),
        'Main/train.txt: line 3: there is no .*JPEGImages/part_002.jpg',
    ),
    'missing XML': ('voc', lambda folder: (folder / XML).unlink(), 'train.txt: line 3: there is no .*part_002.xml'),
    'no objects': (
        'voc', lambda folder: [each.write_text('<annotation/>') for each in (folder / 'Annotations').iterdir()],
        'Annotations has 9 XML files, none of which has an object',
    ),
    'several years': (
        'voc', years, 'voc has VOC2007, VOC2012: name one with --data',
    ),
    'empty list': ('voc', put(LIST, ''), 'Main/train.txt is empty: expected names of images, one a line'),
}  # fmt: skip


@pytest.mark.parametrize(('name', 'damage', 'message'), BAD.values(), ids=BAD)
def test_bad_input(name: str, damage: Callable, message: str, folders: dict[str, Path]) -> None:
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


def test_labels_without_names_are_no_format(folders: dict[str, Path]) -> None:
    """As in the folder of COCO that YOLO's programs download."""
    shutil.copytree(folders['yolo'] / 'labels', folders['coco'] / 'labels')
    assert contents(read(folders['coco'])).keys() == {'train', 'val'}


def test_one_of_two_formats_is_named(folders: dict[str, Path]) -> None:
    folder = folders['yolo']
    names = write_images(folder / 'images', range(4))
    (folder / 'annotations.json').write_text(json.dumps(coco(range(4), names)))
    for path, number in (('data.yaml', 6), ('annotations.json', 3)):
        assert len(contents(read(folder / path))['train'].images) == number
    write_voc_folder(folder, train=range(3))
    assert len(contents(read(folder / 'Annotations'))['train'].images) == 2


@pytest.mark.parametrize(
    ('line', 'what'),
    [
        ('0.5 0.8 0.8 0.3 0.9', SCORE),
        # A number of a track follows a box inside of the image alone, wide or high; else these are three points.
        ('0.5 0.8 0.8 0.3 0.9 7', TRACK),
        ('0.8 0.5 0.3 0.8 0.9 7', TRACK),
        ('0.5 0.8 0.1 0.6 0.9 7', None),
        ('0.8 0.5 0.6 0.1 0.9 7', None),
        ('0.5 0.5 0.2 0.8 0.9 0.7', None),
        # Keypoints are in the box, but for those that are not labelled.
        ('0.5 0.5 0.2 0.8 0.55 0.85 2 0.45 0.2 1', KEYPOINTS),
        ('0.5 0.5 0.8 0.2 0.85 0.55 2 0.2 0.45 1', KEYPOINTS),
        ('0.5 0.5 0.2 0.8 0.85 0.55 2 0.45 0.2 1', None),
        ('0.5 0.5 0.8 0.2 0.55 0.85 2 0.2 0.45 1', None),
        ('0.5 0.5 0.2 0.8 0 0 0 0.45 0.2 1', KEYPOINTS),
        ('0.5 0.5 0.2 0.8 0.55 0.85 3 0.45 0.2 1', None),
    ],
)
def test_what_follows_a_box_in_a_line_of_yolo(line: str, what: str | None) -> None:
    words = line.split()
    assert _what_follows_box(words, [float(word) for word in words], None) == what
