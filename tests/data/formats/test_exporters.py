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
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.data_check import check_annotations
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import build_dataset

from .exporter_folders import (
    BOX,
    POLYGON,
    corners,
    corners_alone,
    picture,
    shares,
    swapped,
    text,
    turned,
    write_classes,
    write_coco,
    write_masks,
    write_voc,
    write_yolo,
)

DETECTOR, SEGMENTOR = (str(Path(__file__).parents[2] / f'tools/{name}_small.py') for name in ('mask_rcnn', 'upernet'))


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


def double(document: dict) -> None:
    document['annotations'] += [dict(each, id=each['id'] + 100) for each in document['annotations']]


MASKS_OUTSIDE = '10 of 10 annotations: mask outside its box, such as annotation 1 of the image 000.jpg'
# A change of most entries, and what is said of it before a training.
LOOKS = {
    'corners': (corners, ['boxes look like corners x1, y1, x2, y2 (', 'bioattn inspect-data']),
    'shares': (shares, ['boxes look like shares of the width and height of the image (']),
    'swapped': (swapped, ['polygons look as if x and y were exchanged (', MASKS_OUTSIDE, 'bioattn inspect-data']),
    'doubled': (double, ['10 of 20 annotations: annotation twice, such as annotation 101']),
}


@pytest.mark.parametrize(('change', 'looks'), LOOKS.values(), ids=LOOKS)
def test_what_most_entries_look_like(change: Callable, looks: list[str], tmp_path: Path) -> None:
    try:
        said = training_says(write_coco(tmp_path, change))
    except InputError as error:  # boxes of less than a pixel are not trained on, and there are no others
        said = [str(error)]
        assert change is shares
    assert all(look in '\n'.join(said) for look in looks), said


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
