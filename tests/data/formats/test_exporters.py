"""What people bring: habits of exporters that once trained the wrong thing in silence, each from a small input."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import init_default_scope
from PIL import Image

from bioattn_mm.data.checks import Problem
from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.data.formats.class_folders import read_class_folders
from bioattn_mm.data.formats.coco import likeness, read_coco_file
from bioattn_mm.data.formats.detectors import read_objects
from bioattn_mm.data.formats.folders import OwnData, by_split, split_of_name
from bioattn_mm.data.formats.label_maps import read_masks, without_channels
from bioattn_mm.data.image_files import spread
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.data_check import check_annotations
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import build_dataset

from ...own_folders import corners

DETECTOR, SEGMENTOR = (str(Path(__file__).parents[2] / f'tools/{name}_small.py') for name in ('mask_rcnn', 'upernet'))
SIZE = WIDTH, HEIGHT = (96, 64)
BOX, POLYGON = '0 .4 .4 .3 .3\n', '1 .1 .1 .5 .1 .5 .6 .1 .6\n'


def picture(path: Path, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', SIZE, 'red').save(path, **options)
    return path


def turned() -> Image.Exif:
    """EXIF data of a camera that was held upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def text(path: Path, content: str, encoding: str = 'utf-8') -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode(encoding))


def write_coco(folder: Path, change: Callable = lambda document: None, name: str = 'annotations.json') -> Path:
    """Six images with a bolt and a nut each, whose file is changed before it is written."""
    images = [dict(id=i + 1, file_name=f'{i:03}.jpg', width=SIZE[0], height=SIZE[1]) for i in range(6)]
    boxes = [(i, k, [5 + 10 * k + i, 6 + 8 * k, 30, 20]) for i in range(6) for k in range(2)]
    annotations = [
        dict(
            id=1 + 2 * i + k, image_id=i + 1, category_id=k + 1, bbox=[x, y, w, h], area=w * h, iscrowd=0,
            segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]],
        )
        for i, k, (x, y, w, h) in boxes
    ]  # fmt: skip
    categories = [dict(id=1, name='bolt'), dict(id=2, name='nut')]
    document = dict(images=images, annotations=annotations, categories=categories)
    for image in images:
        picture(folder / image['file_name'])
    change(document)
    text(folder / name, json.dumps(document))
    return folder


def write_yolo(folder: Path, labels: str, names: str | None = '[bolt, nut]', image: str = 'images/train') -> Path:
    for number in range(4):
        picture(folder / image / f'{number:03}.jpg')
        text(folder / image.replace('images', 'labels') / f'{number:03}.txt', labels)
    if names:
        text(folder / 'data.yaml', f'train: {image}\nval: {image}\nnames: {names}\n')
    return folder


def write_voc(folder: Path, names: str, encoding: str = 'utf-8', head: str = '', label: str = 'bolt') -> Path:
    for name in names.split():
        picture(folder / f'JPEGImages/{name}.jpg')
        corners = '<xmin>21</xmin><ymin>11</ymin><xmax>50</xmax><ymax>30</ymax>'
        thing = f'<object><name>{label}</name><bndbox>{corners}</bndbox></object>'
        size = f'<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height></size>'
        content = f'{head}<annotation><filename>{name}.jpg</filename>{size}{thing}</annotation>'
        text(folder / f'Annotations/{name}.xml', content, encoding)
    return folder


def write_masks(folder: Path, splits: str, classes: str = 'background\npolyp\n') -> Path:
    labels = np.zeros(SIZE[::-1], np.uint8)
    labels[10:40, 20:60] = 1
    for split in splits.split():
        for number in range(3):
            picture(folder / f'images/{split}/{number}.jpg')
            (folder / f'masks/{split}').mkdir(parents=True, exist_ok=True)
            Image.fromarray(labels).save(folder / f'masks/{split}/{number}.png')
    text(folder / 'classes.txt', classes)
    return folder


def write_classes(folder: Path, splits: str = '.', classes: str = 'glioma notumor') -> Path:
    for split in splits.split():
        for name in classes.split():
            for number in range(3):
                picture(folder / split / name / f'{number}.jpg')
    return folder


def corners_alone(document: dict) -> None:
    corners(document)
    for each in document['annotations']:
        del each['segmentation'], each['area']
        each['bbox'] = [value + shift for value, shift in zip(each['bbox'], (40, 20, 40, 20))]


def detector(folder: Path, with_mask: bool = False) -> OwnData:
    return read_objects(DataArguments(str(folder)), with_mask)


def objects(own: OwnData, split: str = 'train') -> list[tuple[int, list[float]]]:
    """Class and box of the objects of the first image."""
    content = read_coco_file(own.datasets[split]['ann_file'])
    first = content.images[0].id
    found = [each for each in content.annotations if each.image_id == first]
    return [(each.category_id, [round(value, 3) for value in each.bbox]) for each in found]


def training_says(folder: Path) -> list[str]:
    config = load_config(DETECTOR, data=DataArguments(str(folder)))
    return check_annotations(config, ('train_dataloader',))


NAMES_OF_SPLITS = {
    'train': 'train Train TRAINING train2017 TrainImages 1_train trainval',
    'val': 'val Valid validation_2020',
    'test': 'Testing test-dev',
    '': 'trains contest valve images latest',
}


def test_what_a_split_is_called() -> None:
    for split, names in NAMES_OF_SPLITS.items():
        assert {name: split_of_name(name) for name in names.split()} == dict.fromkeys(names.split(), split)
    # The plainest name is the split, and two alike are refused.
    names = ['cat_train', 'train', 'trainval', 'Val2012', 'cat_val', 'other']
    assert by_split(names, Path('lists')) == dict(train='train', val='Val2012')
    with pytest.raises(InputError, match='lists has train1 and train2, each of which could be train'):
        by_split(['train1', 'train2'], Path('lists'))


def test_splits_of_a_classifier_are_no_classes_but_a_class_may_be_called_train(tmp_path: Path) -> None:
    own = read_class_folders(DataArguments(str(write_classes(tmp_path / 'a', 'Training Testing'))))
    assert own.classes == ('glioma', 'notumor')
    assert {split: len(files) for split, files in own.files.items()} == dict(train=4, val=2, test=6)
    own = read_class_folders(DataArguments(str(write_classes(tmp_path / 'b', '.', 'bus car train'))))
    assert own.classes == ('bus', 'car', 'train')


def test_an_empty_class_is_listed_and_what_macos_adds_is_none(tmp_path: Path) -> None:
    write_classes(tmp_path)
    (tmp_path / 'empty').mkdir()
    picture(tmp_path / '__MACOSX/glioma/._0.jpg')
    problems: list[Problem] = []
    own = read_class_folders(DataArguments(str(tmp_path), problems=problems))
    assert own.classes == ('empty', 'glioma', 'notumor')
    assert problems == [Problem('class without images', str(tmp_path / 'empty'))]


def test_label_maps_of_no_split_are_named_and_one_class_is_refused(tmp_path: Path) -> None:
    own = read_masks(DataArguments(str(write_masks(tmp_path / 'a', 'Train Val Test unlabelled'))))
    assert {split: len(files) for split, files in own.files.items()} == dict(train=3, val=3, test=3)
    assert f'not used: the images of {tmp_path / "a/images/unlabelled"}' in own.notes[0]
    write_masks(tmp_path / 'b', '.', 'polyp\n')
    with pytest.raises(InputError, match="one class, 'polyp', .* such as background and polyp in classes.txt"):
        read_masks(DataArguments(str(tmp_path / 'b'), reduce_zero_label=True))


def voc_lists(folder: Path, quote: str = '') -> None:
    write_voc(folder, 't1 t2 t3 v1 v2 x1')
    for name, listed in dict(Train='t1 t2 t3', Validation='v1 v2', Test='x1').items():
        lines = (f'{quote}{each}{quote}\n' for each in listed.split())
        text(folder / f'ImageSets/Main/{name}.txt', ''.join(lines))


def list_of_no_split(folder: Path) -> None:
    text(write_voc(folder, 'a b c d') / 'ImageSets/Main/mine.txt', 'a\n')


def yolo_splits(folder: Path) -> None:
    for split in ('Train', 'Val', 'Test'):
        write_yolo(folder, BOX, names=None, image=f'images/{split}')
    text(folder / 'classes.txt', 'bolt\nnut\n')
    picture(folder / 'images/unlabelled/a.jpg')


def hash_in_a_name(folder: Path) -> None:
    write_yolo(folder, BOX, names=None, image='images')
    text(folder / 'classes.txt', 'nut\n#8 screw\nwasher\n')


def labelimg(folder: Path) -> None:
    write_yolo(folder, BOX, names=None, image='.')
    text(folder / 'classes.txt', 'bolt\nnut\n')


def names_beside_labels(folder: Path) -> None:
    write_yolo(folder, BOX, names=None, image='images')
    text(folder / 'labels/classes.txt', 'bolt\nnut\n')


def darknet(folder: Path) -> None:
    write_yolo(folder, BOX, names=None, image='obj_train_data')
    text(folder / 'obj.data', 'classes = 2\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n')
    text(folder / 'obj.names', 'bolt\nnut\n')
    text(folder / 'train.txt', ''.join(f'data\\obj_train_data\\{number:03}.jpg\n' for number in range(4)))


def xml_in_chinese(folder: Path) -> None:
    write_voc(folder, 'a b c d', 'gb18030', "<?xml version='1.0' encoding='GB2312'?>", '螺栓镕')


def floats(document: dict) -> None:
    for key, names in dict(images=('id', 'width'), annotations=('image_id', 'category_id')).items():
        for each in document[key]:
            each.update({name: float(each[name]) for name in names})


def background_of_labelme(document: dict) -> None:
    document['categories'].insert(0, dict(id=0, name='_background_'))
    document['annotations'][0]['category_id'] = 0


def captions_beside(folder: Path) -> None:
    write_coco(folder, name='stuffed_toys.json')
    content = dict(images=[], annotations=[dict(caption='a')], categories=[])
    text(folder / 'captions_train.json', json.dumps(content))


def backslashes(folder: Path) -> None:
    def windows(document: dict) -> None:
        for image in document['images']:
            image['file_name'] = 'JPEGImages\\' + image['file_name']

    write_coco(folder, windows)
    (folder / 'JPEGImages').mkdir()
    for path in folder.glob('*.jpg'):
        path.unlink()
        picture(folder / path.name.replace('\\', '/'))


BOLT = [(1, [24, 16, 28.8, 19.2])]
OF_COCO = [(1, [5, 6, 30, 20]), (2, [15, 14, 30, 20])]
OF_VOC = [(1, [20, 10, 30, 20])]
THREE_OF_FOUR, FIVE_OF_SIX = dict(train=3, val=1), dict(train=5, val=1)
# A row has what is written: the number of images of each split, objects of the first training image, what is said.
READ = {
    'splits of VOC': (voc_lists, dict(train=3, val=2, test=1), OF_VOC, ''),
    'splits of VOC in quotes': (lambda folder: voc_lists(folder, '"'), dict(train=3, val=2, test=1), OF_VOC, ''),
    'a list of no split': (list_of_no_split, THREE_OF_FOUR, OF_VOC, 'mine.txt, as its name says no'),
    'splits of YOLO': (yolo_splits, dict(train=4, val=4, test=4), BOLT, 'images/unlabelled'),
    'LabelImg': (labelimg, THREE_OF_FOUR, BOLT, ''),
    'names beside labels': (names_beside_labels, THREE_OF_FOUR, BOLT, ''),
    'Darknet': (darknet, THREE_OF_FOUR, BOLT, ''),
    'whole numbers as floats': (lambda folder: write_coco(folder, floats), FIVE_OF_SIX, OF_COCO, ''),
    'background of labelme': (lambda folder: write_coco(folder, background_of_labelme), FIVE_OF_SIX, OF_COCO[1:], ''),
    'captions beside': (captions_beside, FIVE_OF_SIX, OF_COCO, ''),
    'backslashes': (backslashes, FIVE_OF_SIX, OF_COCO, ''),
}


@pytest.mark.parametrize(('write', 'counts', 'first', 'note'), READ.values(), ids=READ)
def test_what_is_read(write: Callable, counts: dict, first: list, note: str, tmp_path: Path) -> None:
    write(tmp_path)
    own = detector(tmp_path)
    assert {split: len(files) for split, files in own.files.items()} == counts
    assert objects(own) == first and all(path.is_file() for files in own.files.values() for path in files)
    assert note in ' '.join(own.notes)
    assert own.classes in (('bolt', 'nut'), ('bolt',))


def labelmap(content: str) -> Callable:
    return lambda folder: text(write_voc(folder, 'a b c d') / 'labelmap.txt', content)


def yaml(names: str) -> Callable:
    return lambda folder: write_yolo(folder, BOX, names)


CLASSES = {
    'hash': (hash_in_a_name, ('nut', '#8 screw', 'washer')),
    'Chinese': (xml_in_chinese, ('螺栓镕',)),
    'label map of CVAT without colours': (
        labelmap("# label : color_rgb : 'body' parts : actions\nbackground:::\nbolt:::\nnut:::\n"), ('bolt', 'nut'),
    ),
    'label map of CVAT': (
        labelmap('# label:color_rgb:parts:actions\nbolt:48,112,32::\nbackground:0,0,0::\n'), ('bolt',),
    ),
    'class twice in CVAT': (labelmap('bolt:48,112,32::\nbolt:48,112,32::\n#8 bolt:1,2,3::\n'), ('bolt', '#8 bolt')),
    'YAML with numbers': (yaml('{0: no, 1: 007}'), ('no', '007')),
    'YAML with a boolean': (yaml('[no, 007]'), ('no', '007')),
    'YAML with a time': (yaml('[12:30, yes]'), ('12:30', 'yes')),
}  # fmt: skip


@pytest.mark.parametrize(('write', 'classes'), CLASSES.values(), ids=CLASSES)
def test_names_of_classes(write: Callable, classes: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path)
    assert detector(tmp_path).classes == classes


@pytest.mark.parametrize('before', ['..\\..\\media\\upload\\4\\', 'images\\1/', 'data/local-files/?d=set/'])
def test_folders_of_another_machine_in_file_names(before: str, tmp_path: Path) -> None:
    """Label Studio has written all of these."""

    def prefix(document: dict) -> None:
        for image in document['images']:
            picture(tmp_path / 'images' / image['file_name'])
            (tmp_path / image['file_name']).unlink()
            image['file_name'] = before + image['file_name']

    own = detector(write_coco(tmp_path, prefix, 'result.json'))
    assert len(own.files['train']) == 5 and own.files['train'][0] == tmp_path / 'images/000.jpg'
    assert 'left out' in ' '.join(own.notes)


def test_entries_that_are_looked_at_are_spread() -> None:
    assert [spread(10, most) for most in (4, 10, None)] == [[0, 3, 6, 9], [*range(10)], [*range(10)]]


def double(document: dict) -> None:
    document['annotations'] += [dict(each, id=each['id'] + 100) for each in document['annotations']]


def rewritten(kind: str, rule: Callable, number: int) -> Callable:
    """A change of the boxes, (x, y, width, height), or of the points of the polygons of some annotations."""

    def change(document: dict) -> None:
        for each in document['annotations'][:number]:
            if kind == 'boxes':
                each['bbox'] = list(rule(*each['bbox']))
            else:
                points = np.reshape(each['segmentation'], (-1, 2)).tolist()
                each['segmentation'] = [[value for point in points for value in rule(*point)]]

    return change


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
        change = rewritten(said.split()[0], rule, number)
        found = likeness(read_coco_file(write_coco(tmp_path, change) / 'annotations.json'))
        assert [line.startswith(f'{said}9 of 12 objects)') for line in found] == [True] * (number == 9), found


MASKS_OUTSIDE = '10 of 10 annotations: mask outside its box, such as annotation 1 of the image 000.jpg'
SWAPPED = 'polygons look as if x and y were exchanged ('
OF_TRAINING = {
    'corners': (corners, ['boxes look like corners x1, y1, x2, y2 (', 'bioattn inspect-data']),
    'swapped': (rewritten('polygons', LOOKS[SWAPPED], 12), [SWAPPED, MASKS_OUTSIDE, 'bioattn inspect-data']),
    'doubled': (double, ['10 of 20 annotations: annotation twice, such as annotation 101']),
}


@pytest.mark.parametrize(('change', 'looks'), OF_TRAINING.values(), ids=OF_TRAINING)
def test_what_is_said_before_a_training(change: Callable, looks: list[str], tmp_path: Path) -> None:
    said = '\n'.join(training_says(write_coco(tmp_path, change)))
    assert all(look in said for look in looks), said


def test_corners_without_masks(tmp_path: Path) -> None:
    found = likeness(read_coco_file(write_coco(tmp_path, corners_alone) / 'annotations.json'))
    assert len(found) == 1 and found[0].startswith('boxes look like corners x1, y1, x2, y2 (12 of 12 objects)')
    assert not likeness(read_coco_file(write_coco(tmp_path) / 'annotations.json'))


def test_sizes_before_exif_turns_the_images(tmp_path: Path) -> None:
    for path in write_coco(tmp_path).glob('*.jpg'):
        picture(path, exif=turned())
    said = training_says(tmp_path)
    assert '5 of 5 images whose headers were read: image of another size' in said[0] and '64 x 96' in said[0]
    assert 'width and height exchanged (5 of 5 images)' in said[1]


def test_label_maps_of_turned_images(tmp_path: Path) -> None:
    """Splits in capitals, and WebP files that EXIF data turn, as the label maps are; the test images stay apart."""
    for path in write_masks(tmp_path, 'Train Val Test').glob('images/*/*.jpg'):
        label_map = tmp_path / 'masks' / path.parent.name / f'{path.stem}.png'
        Image.open(label_map).transpose(Image.Transpose.ROTATE_270).save(label_map)
        picture(path.with_suffix('.webp'), exif=turned())
        path.unlink()
    config = load_config(SEGMENTOR, data=DataArguments(str(tmp_path)))
    said = '\n'.join(config.own_data)
    assert 'train: 3 images of' in said and 'test: 3 images of' in said
    init_default_scope('mmseg')
    dataset = build_dataset(dict(config.train_dataloader.dataset, pipeline=config.test_pipeline))
    assert [sample['data_samples'].gt_sem_seg.shape for sample in dataset] == [(96, 64)] * 3


def test_where_all_entries_are_faulty_they_are_listed(tmp_path: Path) -> None:
    write_coco(tmp_path, lambda document: [image.update(width='wide') for image in document['images']])
    problems: list[Problem] = []
    with pytest.raises(InputError, match='has no images that can be used: 6 entries cannot'):
        read_objects(DataArguments(str(tmp_path), problems=problems), False)
    assert [problem.kind for problem in problems] == ['image malformed'] * 6


def test_sizes_in_place_of_corners_in_xml(tmp_path: Path) -> None:
    def looks_like(names: str) -> list[str]:
        for path in (write_voc(tmp_path, names) / 'Annotations').iterdir():
            path.write_text(path.read_text().replace('<xmin>21', '<xmin>51').replace('<xmax>50', '<xmax>30'))
        return likeness(read_coco_file(detector(tmp_path).datasets['train']['ann_file']))

    assert not looks_like('a b c d')  # three objects are too few to say it
    (said,) = looks_like('e f g h')
    assert said.startswith('boxes look like width and height in place of the second corner (7 of 7 objects)')


def test_xml_that_cannot_be_read_is_named_with_the_cause(tmp_path: Path) -> None:
    write_voc(tmp_path, 'a b', head='<broken>')
    with pytest.raises(InputError, match='none of which has an object that can be used, such as .*a.xml: .*line '):
        detector(tmp_path)


LINES = {
    'polygon': (POLYGON, [(2, [9.6, 6.4, 38.4, 32])], ''),
    'score': ('0 .4 .4 .3 .3 .87\n', BOLT, 'end with a score'),
    'number of a track': ('0 .4 .4 .3 .3 17\n', BOLT, 'end with a score'),
    'score and track': ('0 .4 .4 .3 .3 .87 1\n', BOLT, 'the number of a track'),
    'triangle at the border': ('1 .1 .1 .5 .1 .5 1\n', [(2, [9.6, 6.4, 38.4, 57.6])], ''),
    'polygon at two borders': ('1 .1 .5 .3 .6 .2 .8 0 .9 0 1\n', [(2, [0, 32, 28.8, 32])], ''),
    'keypoints': ('0 .4 .4 .3 .3 .3 .3 2 .5 .5 1\n', BOLT, 'have keypoints'),
}


@pytest.mark.parametrize(('line', 'expected', 'note'), LINES.values(), ids=LINES)
def test_what_follows_a_box_is_no_polygon(line: str, expected: list, note: str, tmp_path: Path) -> None:
    own = detector(write_yolo(tmp_path, line))
    assert objects(own) == expected and note in ' '.join(own.notes)


@pytest.mark.parametrize('channels', [1, 2, 3, 4])
def test_label_maps_saved_as_images(channels: int) -> None:
    labels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    image = np.stack([labels] * channels, axis=-1)
    if channels in (2, 4):
        image[..., -1] = 255
    assert np.array_equal(without_channels(image), labels)
    coloured = np.stack([labels, labels, 2 * labels], axis=-1)
    assert np.array_equal(without_channels(coloured), coloured)
