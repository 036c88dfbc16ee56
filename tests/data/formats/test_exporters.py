"""What people bring: habits of exporters that once trained the wrong thing in silence, each from a small input."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
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

from .exporter_folders import (
    BOX,
    POLYGON,
    corners,
    corners_alone,
    picture,
    shares,
    swapped,
    text,
    write_classes,
    write_coco,
    write_masks,
    write_voc,
    write_yolo,
)

DETECTOR = str(Path(__file__).parents[2] / 'tools/mask_rcnn_small.py')


def detector(folder: Path, with_mask: bool = False) -> OwnData:
    return read_objects(DataArguments(str(folder)), with_mask)


def counts(own: OwnData) -> dict[str, int]:
    """The number of images of each split."""
    return {split: len(files) for split, files in own.files.items()}


def objects(own: OwnData, split: str = 'train') -> list[tuple[int, list[float]]]:
    """Class and box of the objects of the first image."""
    content = read_coco_file(own.datasets[split]['ann_file'])
    first = content.images[0].id
    found = [each for each in content.annotations if each.image_id == first]
    return [(each.category_id, [round(value, 3) for value in each.bbox]) for each in found]


def training_says(folder: Path) -> list[str]:
    config = load_config(DETECTOR, data=DataArguments(str(folder)))
    return check_annotations(config, ('train_dataloader',))


@pytest.mark.parametrize(
    ('name', 'split'),
    [
        *(
            (name, 'train')
            for name in ('train', 'Train', 'TRAINING', 'train2017', 'TrainImages', '1_train', 'trainval')
        ),
        *((name, 'val') for name in ('val', 'Valid', 'validation_2020')),
        *((name, 'test') for name in ('Testing', 'test-dev')),
        *((name, '') for name in ('trains', 'contest', 'valve', 'images', 'latest')),
    ],
)
def test_what_a_split_is_called(name: str, split: str) -> None:
    assert split_of_name(name) == split


def test_the_plainest_name_is_the_split_and_two_alike_are_refused() -> None:
    names = ['cat_train', 'train', 'trainval', 'Val2012', 'cat_val', 'other']
    assert by_split(names, Path('lists')) == dict(train='train', val='Val2012')
    with pytest.raises(InputError, match='lists has train1 and train2, each of which could be train'):
        by_split(['train1', 'train2'], Path('lists'))


def test_splits_of_a_classifier_are_no_classes(tmp_path: Path) -> None:
    own = read_class_folders(DataArguments(str(write_classes(tmp_path, 'Training Testing'))))
    assert own.classes == ('glioma', 'notumor') and counts(own) == dict(train=4, val=2, test=6)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    own = read_class_folders(DataArguments(str(write_classes(tmp_path, '.', 'bus car train'))))
    assert own.classes == ('bus', 'car', 'train')


def test_an_empty_class_is_listed_and_what_macos_adds_is_none(tmp_path: Path) -> None:
    write_classes(tmp_path)
    (tmp_path / 'empty').mkdir()
    picture(tmp_path / '__MACOSX/glioma/._0.jpg')
    problems: list[Problem] = []
    own = read_class_folders(DataArguments(str(tmp_path), problems=problems))
    assert own.classes == ('empty', 'glioma', 'notumor')
    assert problems == [Problem('class without images', str(tmp_path / 'empty'))]


def test_images_of_no_split_are_named(tmp_path: Path) -> None:
    own = read_masks(DataArguments(str(write_masks(tmp_path, 'Train Val Test unlabelled'))))
    assert counts(own) == dict(train=3, val=3, test=3)
    assert f'not used: the images of {tmp_path / "images/unlabelled"}' in own.notes[0]


@pytest.mark.parametrize('quote', ['', '"'])
def test_splits_of_voc(quote: str, tmp_path: Path) -> None:
    write_voc(tmp_path, 't1 t2 t3 v1 v2 x1')
    for name, listed in dict(Train='t1 t2 t3', Validation='v1 v2', Test='x1').items():
        lines = (f'{quote}{each}{quote}\n' for each in listed.split())
        text(tmp_path / f'ImageSets/Main/{name}.txt', ''.join(lines))
    assert counts(detector(tmp_path)) == dict(train=3, val=2, test=1)


def test_lists_of_no_split_are_named(tmp_path: Path) -> None:
    text(write_voc(tmp_path, 'a b c d') / 'ImageSets/Main/mine.txt', 'a\n')
    own = detector(tmp_path)
    assert counts(own) == dict(train=3, val=1) and any('mine.txt, as its name says no' in note for note in own.notes)


def test_splits_of_yolo(tmp_path: Path) -> None:
    for split in ('Train', 'Val', 'Test'):
        write_yolo(tmp_path, BOX, names=None, image=f'images/{split}')
    text(tmp_path / 'classes.txt', 'bolt\nnut\n')
    picture(tmp_path / 'images/unlabelled/a.jpg')
    own = detector(tmp_path)
    assert counts(own) == dict(train=4, val=4, test=4)
    assert [str(tmp_path / 'images/unlabelled') in note for note in own.notes].count(True) == 1


def test_a_class_begins_with_a_hash(tmp_path: Path) -> None:
    write_yolo(tmp_path, '1 .5 .5 .2 .2\n', names=None, image='images')
    text(tmp_path / 'classes.txt', 'nut\n#8 screw\nwasher\n')
    own = detector(tmp_path)
    assert own.classes == ('nut', '#8 screw', 'washer') and objects(own) == [(2, [38.4, 25.6, 19.2, 12.8])]


def test_one_class_of_a_segmentor_is_refused(tmp_path: Path) -> None:
    write_masks(tmp_path, '.', 'polyp\n')
    with pytest.raises(
        InputError, match="one class, 'polyp', .* such as background and polyp in classes.txt, without"
    ):
        read_masks(DataArguments(str(tmp_path), reduce_zero_label=True))


LOOKS = {
    'corners': (corners, 'boxes look like corners x1, y1, x2, y2 ('),
    'shares': (shares, 'boxes look like shares of the width and height of the image ('),
    'swapped': (swapped, 'polygons look as if x and y were exchanged ('),
}


@pytest.mark.parametrize(('change', 'looks'), LOOKS.values(), ids=LOOKS)
def test_what_most_entries_look_like(change: Callable, looks: str, tmp_path: Path) -> None:
    try:
        said = training_says(write_coco(tmp_path, change))
    except InputError as error:  # boxes of less than a pixel are not trained on, and there are no others
        said = [str(error)]
        assert change is shares
    assert any(looks in line for line in said), said


def test_corners_without_masks(tmp_path: Path) -> None:
    found = likeness(read_coco_file(write_coco(tmp_path, corners_alone) / 'annotations.json'))
    assert len(found) == 1 and found[0].startswith('boxes look like corners x1, y1, x2, y2 (12 of 12 objects)')
    assert not likeness(read_coco_file(write_coco(tmp_path, lambda document: None) / 'annotations.json'))


def test_a_mask_outside_of_its_box_is_counted_before_training(tmp_path: Path) -> None:
    said = training_says(write_coco(tmp_path, swapped))
    assert '10 of 10 annotations: mask outside its box, such as annotation 1 of the image 000.jpg' in said[0]
    assert 'bioattn inspect-data' in said[-1]


def test_sizes_before_exif_turns_the_images(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    write_coco(tmp_path)
    for number in range(6):
        picture(tmp_path / f'{number:03}.jpg', exif=exif)
    said = training_says(tmp_path)
    assert '5 of 5 images whose headers were read: image of another size' in said[0] and '64 x 96' in said[0]
    assert 'width and height exchanged (5 of 5 images)' in said[1]


def floats(document: dict) -> None:
    for key, names in dict(images=('id', 'width'), annotations=('image_id', 'category_id')).items():
        for each in document[key]:
            each.update({name: float(each[name]) for name in names})


def test_whole_numbers_as_floats(tmp_path: Path) -> None:
    own = detector(write_coco(tmp_path, floats), with_mask=True)
    assert counts(own) == dict(train=5, val=1) and objects(own)[0] == (1, [5, 6, 30, 20])


def test_where_all_entries_are_faulty_they_are_listed(tmp_path: Path) -> None:
    write_coco(tmp_path, lambda document: [image.update(width='wide') for image in document['images']])
    problems: list[Problem] = []
    with pytest.raises(InputError, match='has no images that can be used: 6 entries cannot'):
        read_objects(DataArguments(str(tmp_path), problems=problems), False)
    assert [problem.kind for problem in problems] == ['image malformed'] * 6


@pytest.mark.parametrize(
    ('labelmap', 'classes'),
    [
        ("# label : color_rgb : 'body' parts : actions\nbackground:::\nbolt:::\nnut:::\n", ('bolt', 'nut')),
        ('# label:color_rgb:parts:actions\nbolt:48,112,32::\nbackground:0,0,0::\n', ('bolt',)),
        ('bolt:48,112,32::\nbolt:48,112,32::\n#8 bolt:1,2,3::\n', ('bolt', '#8 bolt')),
    ],
)
def test_label_maps_of_cvat(labelmap: str, classes: tuple[str, ...], tmp_path: Path) -> None:
    text(write_voc(tmp_path, 'a b c d') / 'labelmap.txt', labelmap)
    assert detector(tmp_path).classes == classes


def test_the_background_of_labelme_is_no_class(tmp_path: Path) -> None:
    def add(document: dict) -> None:
        document['categories'].insert(0, dict(id=0, name='_background_'))
        document['annotations'][0]['category_id'] = 0

    own = detector(write_coco(tmp_path, add))
    assert own.classes == ('bolt', 'nut') and [label for label, _ in objects(own)] == [2]


@pytest.mark.parametrize('names', ['{0: no, 1: 007}', '[no, 007]', '[12:30, yes]'])
def test_names_that_yaml_takes_for_something_else(names: str, tmp_path: Path) -> None:
    words = [word.strip('{}[] ').split(': ')[-1] for word in names.split(',')]
    assert list(detector(write_yolo(tmp_path, BOX, names)).classes) == words


def labelimg(folder: Path) -> None:
    write_yolo(folder, BOX, names=None, image='.')
    text(folder / 'classes.txt', 'bolt\nnut\n')


def beside_labels(folder: Path) -> None:
    write_yolo(folder, BOX, names=None, image='images')
    text(folder / 'labels/classes.txt', 'bolt\nnut\n')


def darknet(folder: Path) -> None:
    write_yolo(folder, BOX, names=None, image='obj_train_data')
    text(folder / 'obj.data', 'classes = 2\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n')
    text(folder / 'obj.names', 'bolt\nnut\n')
    text(folder / 'train.txt', ''.join(f'data\\obj_train_data\\{number:03}.jpg\n' for number in range(4)))


@pytest.mark.parametrize('write', [labelimg, beside_labels, darknet])
def test_layouts_of_yolo(write: Callable, tmp_path: Path) -> None:
    write(tmp_path)
    own = detector(tmp_path)
    assert own.classes == ('bolt', 'nut') and counts(own) == dict(train=3, val=1)
    assert objects(own) == [(1, [24, 16, 28.8, 19.2])]


def test_xml_in_chinese(tmp_path: Path) -> None:
    head = "<?xml version='1.0' encoding='GB2312'?>"
    assert detector(write_voc(tmp_path, 'a b c d', 'gb18030', head, '螺栓镕')).classes == ('螺栓镕',)


def test_sizes_in_place_of_corners_in_xml(tmp_path: Path) -> None:
    write_voc(tmp_path, 'a b c d')
    for path in (tmp_path / 'Annotations').iterdir():
        content = path.read_text().replace('<xmax>50', '<xmax>30').replace('<ymax>30', '<ymax>20')
        path.write_text(content.replace('<xmin>21', '<xmin>51'))
    found = likeness(read_coco_file(detector(tmp_path).datasets['train']['ann_file']))
    assert not found  # three objects are too few to say it
    write_voc(tmp_path, 'e f g h')
    for path in (tmp_path / 'Annotations').iterdir():
        path.write_text(path.read_text().replace('<xmin>21', '<xmin>51').replace('<xmax>50', '<xmax>30'))
    found = likeness(read_coco_file(detector(tmp_path).datasets['train']['ann_file']))
    assert found[0].startswith('boxes look like width and height in place of the second corner (7 of 7 objects)')


def test_xml_that_cannot_be_read_is_named_with_the_cause(tmp_path: Path) -> None:
    write_voc(tmp_path, 'a b', head='<broken>')
    with pytest.raises(InputError, match='none of which has an object that can be used, such as .*a.xml: .*line '):
        detector(tmp_path)


def test_backslashes_in_file_names(tmp_path: Path) -> None:
    def windows(document: dict) -> None:
        for image in document['images']:
            image['file_name'] = 'JPEGImages\\' + image['file_name']

    write_coco(tmp_path / 'JPEGImages')
    text(tmp_path / 'annotations.json', (write_coco(tmp_path / 'x', windows) / 'annotations.json').read_text())
    (tmp_path / 'JPEGImages/annotations.json').unlink()
    (tmp_path / 'x/annotations.json').unlink()
    own = detector(tmp_path)
    assert own.files['train'][0] == tmp_path / 'JPEGImages/000.jpg'


@pytest.mark.parametrize('before', ['..\\..\\media\\upload\\4\\', 'images\\1/', 'data/local-files/?d=set/'])
def test_folders_of_another_machine_in_file_names(before: str, tmp_path: Path) -> None:
    """Label Studio has written all of these."""

    def prefix(document: dict) -> None:
        for image in document['images']:
            picture(tmp_path / 'images' / image['file_name'])
            (tmp_path / image['file_name']).unlink()
            image['file_name'] = before + image['file_name']

    own = detector(write_coco(tmp_path, prefix, 'result.json'))
    assert counts(own) == dict(train=5, val=1) and own.files['train'][0] == tmp_path / 'images/000.jpg'
    assert 'left out' in ' '.join(own.notes)


def test_a_file_is_skipped_for_what_it_holds(tmp_path: Path) -> None:
    write_coco(tmp_path, name='stuffed_toys.json')
    text(
        tmp_path / 'captions_train.json', json.dumps(dict(images=[], annotations=[dict(caption='a')], categories=[]))
    )
    assert counts(detector(tmp_path)) == dict(train=5, val=1)


def test_doubled_annotations_are_counted(tmp_path: Path) -> None:
    def double(document: dict) -> None:
        document['annotations'] += [dict(each, id=each['id'] + 100) for each in document['annotations']]

    assert (
        '10 of 20 annotations: annotation twice, such as annotation 101'
        in training_says(write_coco(tmp_path, double))[0]
    )


LINES = {
    'polygon': (POLYGON, [(2, [9.6, 6.4, 38.4, 32])], ''),
    'score': ('0 .4 .4 .3 .3 .87\n', [(1, [24, 16, 28.8, 19.2])], 'end with a score'),
    'number of a track': ('0 .4 .4 .3 .3 17\n', [(1, [24, 16, 28.8, 19.2])], 'end with a score'),
    'score and track': ('0 .4 .4 .3 .3 .87 1\n', [(1, [24, 16, 28.8, 19.2])], 'the number of a track'),
    'triangle at the border': ('1 .1 .1 .5 .1 .5 1\n', [(2, [9.6, 6.4, 38.4, 57.6])], ''),
    'polygon at two borders': ('1 .1 .5 .3 .6 .2 .8 0 .9 0 1\n', [(2, [0, 32, 28.8, 32])], ''),
    'keypoints': ('0 .4 .4 .3 .3 .3 .3 2 .5 .5 1\n', [(1, [24, 16, 28.8, 19.2])], 'have keypoints'),
}


@pytest.mark.parametrize(('line', 'expected', 'note'), LINES.values(), ids=LINES)
def test_what_follows_a_box_is_no_polygon(
    line: str, expected: list[tuple[int, list[float]]], note: str, tmp_path: Path
) -> None:
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
