"""tools/inspect_data.py: statistics of the miniature data, and what is wrong in damaged ones, also at random."""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.data_check import check_annotations
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import build_dataset

from ..defects import Case, coco_case, mask_case
from ..own_folders import UPRIGHT, corners, write_coco_folder, write_mask_folder
from .running import ROOT, InProcess, read_csv

TOOL = 'inspect_data.py'
DETECTOR = str(ROOT / 'tests/tools/mask_rcnn_small.py')
SEGMENTOR = str(ROOT / 'tests/tools/upernet_small.py')
METAINFO = "metainfo=dict(classes=('bolt', 'nut', 'washer'), palette=[(255, 0, 0), (0, 255, 0), (0, 0, 255)])"
DETECTION = f"""
_base_ = {DETECTOR!r}
dataset = dict(
    data_root='.', ann_file='annotations.json', data_prefix=dict(img='images'), filter_cfg=None, {METAINFO},
)
train_dataloader = dict(dataset=dataset)
val_dataloader = dict(dataset=dataset)
"""
SEGMENTATION = f"""
_base_ = {SEGMENTOR!r}
dataset = dict(
    _delete_=True, type='BaseSegDataset', data_root='.', pipeline=_base_.train_dataloader.dataset.pipeline,
    data_prefix=dict(img_path='images', seg_map_path='masks'), {METAINFO},
)
train_dataloader = dict(dataset=dataset)
"""
WIDTH, HEIGHT = 64, 48
OUTLINE = [[5, 5, 25, 5, 25, 20, 5, 20]]


def summary_of(out: Path) -> dict:
    return json.loads((out / 'statistics.json').read_text())['summary']


def problems_of(tool: InProcess, folder: Path, *args: object) -> tuple[list[tuple[str, str, str]], str]:
    """Run the tool, which must end with exit code 1; the problems it wrote, and what it printed."""
    with pytest.raises(SystemExit) as exit_:
        tool(folder, TOOL, *args)
    assert exit_.value.code == 1
    rows = read_csv(folder / 'out/problems.csv')
    return [(row['kind'], Path(row['file']).name, row['detail']) for row in rows], tool.capsys.readouterr().out


def write_image(path: Path, size: tuple[int, int] = (WIDTH, HEIGHT), **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)


def image(number: int, **more: object) -> dict:
    return dict(id=number, file_name=f'{number}.jpg', width=WIDTH, height=HEIGHT) | more


def annotation(number: int, **more: object) -> dict:
    usual = dict(id=number, image_id=1, category_id=1, bbox=[5, 5, 20, 15], area=300, iscrowd=0, segmentation=OUTLINE)
    return {key: value for key, value in (usual | more).items() if value is not None}


CATEGORIES = [dict(id=number, name=name) for number, name in enumerate(('bolt', 'nut', 'washer'), 1)]


def write_coco(folder: Path, annotations: list[dict], images: list[dict], categories: list = CATEGORIES) -> None:
    """A dataset in COCO's format with images 1 to 3, and a config for it."""
    for number in (1, 2, 3):
        write_image(folder / f'images/{number}.jpg')
    document = dict(images=images, annotations=annotations, categories=categories)
    (folder / 'annotations.json').write_text(json.dumps(document))
    (folder / 'detection.py').write_text(DETECTION)


def test_miniature_coco(workplace: Path, tool: InProcess) -> None:
    printed = tool(workplace, TOOL, DETECTOR, '--mini', '--out', 'inspected_boxes', '--number', 5)
    out = workplace / 'inspected_boxes'
    document = json.loads((out / 'statistics.json').read_text())
    truth = json.loads((workplace / 'data/mini/coco/annotations/instances_train2017.json').read_text())
    names = {category['id']: category['name'] for category in truth['categories']}
    objects = [item for item in truth['annotations'] if not item['iscrowd']]
    counts = Counter(names[item['category_id']] for item in objects)
    shown = Counter(name for _, name in {(item['image_id'], names[item['category_id']]) for item in objects})
    rows = read_csv(out / 'classes.csv')
    for column, expected in (('objects', counts), ('images', shown)):
        assert {row['class']: int(row[column]) for row in rows if row[column] != '0'} == expected
    of_images = Counter(item['image_id'] for item in objects)
    files = {Path(row['file']).name: row for row in read_csv(out / 'images.csv')}
    assert {name: (row['width'], row['height'], row['objects']) for name, row in files.items()} == {
        entry['file_name']: (str(entry['width']), str(entry['height']), str(of_images[entry['id']]))
        for entry in truth['images']
    }
    sides, summary = np.sqrt([np.prod(item['bbox'][2:]) for item in objects]), document['summary']
    least_to_most = f'{np.min(sides):.4g}, {np.median(sides):.4g}, {np.max(sides):.4g}'
    assert summary['size of boxes (root of the area): least, median, most'] == least_to_most
    assert summary['objects'] == len(objects) and summary['crowds and ignored objects'] > 0
    assert document['problems'] == {} and 'nothing is wrong' in printed

    # Resized by the pipeline, whose scales of a quarter are larger than the images.
    heights = [Image.open(path).height for path in (out / 'samples').glob('*.png')]
    assert len(heights) == 5 and min(heights) >= 100
    for name in ('samples.png', 'statistics.png'):
        assert np.asarray(Image.open(out / name).convert('L')).std() > 10


def test_miniature_ade20k(workplace: Path, tool: InProcess) -> None:
    out = workplace / 'inspected_maps'
    tool(workplace, TOOL, SEGMENTOR, '--mini', '--split', 'val', '--out', out, '--number', 2, '--decode')
    data = workplace / 'data/mini/ADEChallengeData2016'
    maps = [np.asarray(Image.open(path)) for path in sorted((data / 'annotations/validation').glob('*.png'))]
    counts = np.bincount(np.concatenate([labels.ravel() for labels in maps]), minlength=151)
    rows = read_csv(out / 'classes.csv')
    assert [int(row['pixels']) for row in rows] == counts[1:].tolist()
    assert [int(row['images']) for row in rows] == [sum(n in labels for labels in maps) for n in range(1, 151)]
    summary = summary_of(out)
    assert summary['pixels that do not count'] == counts[0] and summary['problems'] == 0
    first = min((out / 'samples').glob('*.png'))
    assert Image.open(first).size == maps[0].shape[::-1]


TURNED = dict(size=[64, 48], counts=[3072])
# Annotations that are wrong, the kind of the problem, and what is said of it.
BAD_ANNOTATIONS = {
    'category id out of range': (dict(category_id=4), '1.jpg', 'annotation 7: category_id 4'),
    'image id unknown': (dict(image_id=9), 'annotations.json', 'annotation 7: image_id 9'),
    'box outside the image': (dict(bbox=[50, 5, 20, 15]), '1.jpg', 'annotation 7: bbox .* reaches 6 pixels over the'),
    'box without area': (dict(bbox=[5, 5, 20, 0]), '1.jpg', r'annotation 7: bbox \[5, 5, 20, 0\]'),
    'box malformed': (dict(bbox=[5, 5, 20]), 'annotations.json', r'annotation 7: bbox \[5, 5, 20\], expected'),
    'annotation without area': (dict(area=None), '1.jpg', 'annotation 7: area None'),
    'mask malformed': (dict(segmentation=[[1, 2, 3]]), '1.jpg', 'annotation 7: no polygon of three points'),
    'mask of another size': (dict(segmentation=TURNED), '1.jpg', r'annotation 7: run lengths for \[64, 48\], '),
    'annotation id twice': (dict(id=1), 'annotations.json', '1 stands 2 times'),
}


@pytest.fixture(scope='module')
def damaged_coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in which everything is wrong once."""
    folder = tmp_path_factory.mktemp('damaged')
    bad = [annotation(7, **changes) for changes, _, _ in BAD_ANNOTATIONS.values()]
    bad = [dict(item, id=item['id'] if item['id'] == 1 else 70 + number) for number, item in enumerate(bad)]
    good = [annotation(1), annotation(2, category_id=2, bbox=[0.5, 0.5, 63.9, 47.9]), annotation(3, iscrowd=1)]
    images = [
        image(1), image(2), image(3, width=48, height=64), image(4), image(5), image(6), image(2, file_name='1.jpg'),
        dict(id=8, file_name='8.jpg'),
    ]  # fmt: skip
    write_coco(folder, good + bad, images)
    (folder / 'images/5.jpg').write_text('no image')
    write_image(folder / 'images/6.jpg', (HEIGHT, WIDTH), exif=UPRIGHT)  # turned, it is as the annotations say
    return folder


def test_images_of_many_objects(tmp_path: Path, tool: InProcess) -> None:
    counts = {1: 1000, 2: 2, 3: 301}
    many = enumerate((number for number, count in counts.items() for _ in range(count)), 1)
    annotations = [annotation(index, image_id=number, bbox=[5, 5, 20, 15 + index / 1e4]) for index, number in many]
    write_coco(tmp_path, annotations, [image(number) for number in counts])
    printed = tool(tmp_path, TOOL, 'detection.py', '--out', 'out', '--original')
    assert 'nothing is wrong' in printed
    for number, count in counts.items():
        assert (f'{number}.jpg: 300 of {count} objects are drawn' in printed) == (count > 300)
    assert summary_of(tmp_path / 'out')['objects'] == sum(counts.values())


def test_everything_wrong_in_a_coco_file(damaged_coco: Path, tool: InProcess) -> None:
    problems, printed = problems_of(tool, damaged_coco, 'detection.py', '--out', 'out', '--number', 2)
    for kind, (_, file, detail) in BAD_ANNOTATIONS.items():
        of_kind = [problem for problem in problems if problem[0] == kind]
        assert len(of_kind) == 1 and of_kind[0][1] == file, kind
        assert re.match(re.sub('annotation 7', r'annotation 7\\d', detail), of_kind[0][2]), kind
        assert kind in printed
    others = [each for each in problems if each[0] not in (*BAD_ANNOTATIONS, 'dataset cannot be loaded')]
    assert sorted(others) == [
        ('annotation twice', '1.jpg', 'annotation 1: the same image, class, box and mask as one before'),
        ('image file twice', 'annotations.json', "'1.jpg' stands 2 times"),
        ('image id twice', 'annotations.json', '2 stands 2 times'),
        ('image incomplete', 'annotations.json', 'image 8: no width: {"id": 8, "file_name": "8.jpg"}'),
        ('image missing', '4.jpg', ''),
        ('image of another size', '3.jpg', '64 x 48, the annotations say 48 x 64'),
        ('image unreadable', '5.jpg', "cannot identify image file 'images/5.jpg'"),
    ]
    document = json.loads((damaged_coco / 'out/statistics.json').read_text())
    assert document['summary']['images without annotations'] == 6
    assert [row['objects'] for row in document['classes']] == [1, 1, 0]
    assert document['summary']['crowds and ignored objects'] == 1


def test_masks_are_not_checked_for_a_detector_of_boxes(tmp_path: Path, tool: InProcess) -> None:
    write_coco(tmp_path, [annotation(1, segmentation=None), annotation(2)], [image(1), image(2), image(3)])
    problems, _ = problems_of(tool, tmp_path, 'detection.py', '--out', 'out')
    # Which ends the loading of the image, too, and is one problem.
    assert [problem[:2] for problem in problems] == [('mask malformed', '1.jpg')]
    boxes = ('--cfg-options', 'train_dataloader.dataset.pipeline.1.with_mask=False')
    tool(tmp_path, TOOL, 'detection.py', '--out', 'boxes', '--original', *boxes)
    summary = summary_of(tmp_path / 'boxes')
    assert summary['images without annotations'] == 2 and summary['problems'] == 0
    # The images as they are, and after the augmentation, which enlarges them.
    assert {Image.open(path).size for path in (tmp_path / 'boxes/samples').iterdir()} == {(WIDTH, HEIGHT)}
    assert min(Image.open(path).size for path in (tmp_path / 'out/samples').iterdir()) > (400, 300)


def test_width_and_height_exchanged_in_images_spread_over_all(tmp_path: Path, tool: InProcess) -> None:
    images = [image(number, width=HEIGHT, height=WIDTH) for number in (1, 2, 3)]
    write_coco(tmp_path, [annotation(1)], images)
    (tmp_path / 'images/2.jpg').write_bytes(b'')  # is not read
    problems, printed = problems_of(tool, tmp_path, 'detection.py', '--out', 'out', '--number', 0, '--max-images', 2)
    assert [problem[1] for problem in problems] == ['1.jpg', '3.jpg', 'images']
    assert 'look like width and height exchanged (2 of 2 images)' in problems[-1][2]
    assert '2 of 3 image files were read' in printed


def test_categories_that_mmdet_would_number_otherwise(tmp_path: Path, tool: InProcess) -> None:
    names = ((5, 'washer'), (1, 'bolt'), (9, 'screw'), (1, 'rod'))
    categories = [dict(id=number, name=name) for number, name in names]
    annotations = [annotation(1), annotation(2, category_id=9), annotation(3, category_id=5)]
    write_coco(tmp_path, annotations, [image(1)], categories)
    problems, printed = problems_of(tool, tmp_path, 'detection.py', '--out', 'out', '--number', 0)
    assert [problem[0] for problem in problems] == [
        'category id twice', 'class without category', 'categories in another order',
    ]  # fmt: skip
    assert problems[1][2].startswith("'nut': ") and problems[2][2].startswith('washer, bolt: ')
    assert "left out: 'screw' (1)" in printed.replace('\n', ' ')


def test_everything_wrong_in_label_maps(tmp_path: Path, tool: InProcess) -> None:
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[:10], labels[10] = 2, 255
    wrong = labels.copy()
    wrong[0, :3], wrong[1, :2] = 3, 254
    maps = dict(
        good=labels, wrong=wrong, small=labels[:-1], empty=np.full_like(labels, 255), unread=labels,
        wide=np.where(labels == 2, 258, labels.astype(np.uint16)), cut=labels,
        colour=np.stack([labels, labels, labels // 2], axis=-1),
    )  # fmt: skip
    (tmp_path / 'masks').mkdir()
    for name, values in maps.items():
        write_image(tmp_path / f'images/{name}.jpg')
        Image.fromarray(values).save(tmp_path / f'masks/{name}.png')
    write_image(tmp_path / 'images/alone.jpg')
    (tmp_path / 'images/unread.jpg').write_text('no image')
    (tmp_path / 'masks/cut.png').write_bytes((tmp_path / 'masks/cut.png').read_bytes()[:60])
    (tmp_path / 'segmentation.py').write_text(SEGMENTATION)
    problems, printed = problems_of(tool, tmp_path, 'segmentation.py', '--out', 'out', '--original')
    expected = [
        ('label map missing', 'alone.png', ''),
        ('label map of another kind', 'colour.png', r'shape \(48, 64, 3\), uint8: expected one integer a pixel'),
        ('label map unreadable', 'cut.png', '.+'),
        ('label map of another size', 'small.png', '64 x 47, the image is 64 x 48'),
        ('image unreadable', 'unread.jpg', 'cannot identify image file .*'),
        # mmseg would take it for 2.
        ('label out of range', 'wide.png', '640 pixels are 258: expected 0 to 2, or 255'),
        ('label out of range', 'wrong.png', '3 pixels are 3: expected 0 to 2, or 255'),
        ('label out of range', 'wrong.png', '2 pixels are 254: expected 0 to 2, or 255'),
    ]
    for problem, (kind, file, detail) in zip(problems, expected, strict=True):
        assert problem[:2] == (kind, file) and re.fullmatch(detail, problem[2]), problem
    assert summary_of(tmp_path / 'out')['images without annotations'] == 1
    assert 'label out of range: ' in printed
    drawn = {path.stem.partition('_')[2] for path in (tmp_path / 'out/samples').iterdir()}
    assert drawn == {'good', 'wrong', 'empty'}


def test_labels_of_a_classifier(tmp_path: Path, tool: InProcess) -> None:
    for name in ('ant', 'bee'):
        write_image(tmp_path / f'images/{name}/1.jpg')
    base = ROOT / 'configs/convit/convit-tiny_8xb128_in1k.py'

    def config(**dataset: object) -> str:
        dataset = dict(_delete_=True, type='CustomDataset', data_root='.', data_prefix='images') | dataset
        steps = 'dataset["pipeline"] = _base_.test_pipeline'
        text = f'_base_ = {str(base)!r}\ndataset = {dataset}\n{steps}\ntrain_dataloader = dict(dataset=dataset)\n'
        (tmp_path / 'classifier.py').write_text(text)
        return 'classifier.py'

    tool(tmp_path, TOOL, config(), '--out', 'classes_of_folders')
    assert summary_of(tmp_path / 'classes_of_folders')['images'] == 2
    listed = dict(metainfo=dict(classes=('ant', 'bee')), ann_file='list.txt')
    for label in (7, -1):
        (tmp_path / 'list.txt').write_text(f'ant/1.jpg 0\nbee/1.jpg {label}\n')
        problems, _ = problems_of(tool, tmp_path, config(**listed), '--out', 'out')
        assert problems == [('label out of range', '1.jpg', f'[{label}], expected 0 to 1')]
        shutil.rmtree(tmp_path / 'out')
    (tmp_path / 'list.txt').write_text('')
    line = tool.refused(tmp_path, TOOL, config(**listed), '--out', 'out')
    assert 'no images' in line


REFUSED = {
    'train_dataloader.dataset.ann_file=absent.json': 'no data for CocoDataset at absent.json',
    'train_dataloader.dataset.ann_file=images/1.jpg': '.*/images/1.jpg is no JSON file',
    'train_dataloader.dataset.ann_file=other.json': ".* is not in COCO's format: it has no list of annotations",
    'train_dataloader.dataset.type=VOCDataset': "VOCDataset cannot be inspected: expected mmdet's CocoDataset",
    'train_dataloader=None': '.*detection.py has no train_dataloader',
}


@pytest.mark.parametrize(('option', 'message'), REFUSED.items())
def test_refuses_in_one_line(option: str, message: str, damaged_coco: Path, tool: InProcess) -> None:
    (damaged_coco / 'other.json').write_text('{"images": []}')
    line = tool.refused(damaged_coco, TOOL, 'detection.py', '--out', 'refused', '--cfg-options', option)
    assert re.match(f'error: {message}', line)


def test_problems_of_own_data_are_counted_once(tmp_path: Path, tool: InProcess) -> None:
    """Those that are found while the folder is read, and those of the datasets that are made of it."""
    options = ('--mini', '--out', 'out', '--number', 1, '--decode')
    file = write_coco_folder(tmp_path / 'parts/data', range(10)) / 'annotations.json'
    document = json.loads(file.read_text())
    corners(document)
    document['annotations'][0]['image_id'] = 'none'
    file.write_text(json.dumps(document))
    problems, _ = problems_of(tool, tmp_path / 'parts', DETECTOR, '--data', 'data', *options)
    kinds = {'most entries alike': 1, 'box outside the image': 12, 'image id unknown': 1}
    assert Counter(problem[0] for problem in problems) == kinds

    masks = write_mask_folder(tmp_path / 'scenes/data', range(10)) / 'masks'
    for number in (1, 4, 6):
        path = masks / f'part_{number:03d}.png'
        path.write_bytes(path.read_bytes()[:60])
    (masks / 'part_002.png').unlink()
    both = ('--train-data', 'data', '--val-data', 'data')
    problems, _ = problems_of(tool, tmp_path / 'scenes', SEGMENTOR, *both, *options)
    assert Counter(problem[0] for problem in problems) == {'image without label map': 2, 'label map unreadable': 3}


def test_own_label_maps_of_colours(tmp_path: Path, tool: InProcess) -> None:
    data = write_mask_folder(tmp_path / 'data', range(10))
    colours = np.full((256, 3), 90, np.uint8)
    colours[:3] = (0, 0, 0), (250, 0, 0), (0, 0, 250)
    counts = np.zeros(256, np.int64)
    for path in (data / 'masks').iterdir():
        labels = np.asarray(Image.open(path))
        counts += np.bincount(labels.ravel(), minlength=256)
        Image.fromarray(colours[labels]).save(path)
    (data / 'palette.txt').write_text('0 0 0 table\n250 0 0 bolt\n0 0 250 nut\n90 90 90 ignore\n')
    (data / 'classes.txt').unlink()
    both = ('--train-data', 'data', '--val-data', 'data')
    tool(tmp_path, TOOL, SEGMENTOR, *both, '--mini', '--out', 'right', '--number', 2)
    assert [int(row['pixels']) for row in read_csv(tmp_path / 'right/classes.csv')] == counts[:3].tolist()
    assert summary_of(tmp_path / 'right')['pixels that do not count'] == counts[255] > 0
    Image.new('RGB', (120, 96), (1, 2, 3)).save(data / 'masks/part_000.png')  # a colour that stands for nothing
    problems, _ = problems_of(tool, tmp_path, SEGMENTOR, *both, '--mini', '--out', 'out', '--number', 0)
    detail = 'has 11520 pixels of the colour 1 2 3, which the palette file does not have'
    assert problems[0] == ('label map of other colours', 'part_000.png', detail)


# Of each kind; CONTRIBUTING.md says how to run more.
NUM_CASES = int(os.environ.get('BIOATTN_NUM_DEFECTS', '24')) // 2
LOADERS = ('train_dataloader', 'val_dataloader')


def inspected(case: Case, config: str, tool: InProcess) -> list[str]:
    """What inspect-data says of both splits: its problems, or its error line; and it draws an image of each."""
    lines = []
    for split in ('train', 'val'):
        out = case.folder.with_name(f'{case.folder.name}_{split}')
        options = ('--data', case.folder, '--mini', '--split', split, '--out', out, '--number', 1, '--decode')
        try:
            tool(case.folder.parent, 'inspect_data.py', config, *options)
        except SystemExit as exit_:
            if exit_.code == 2:
                return [*lines, *tool.capsys.readouterr().err.splitlines()]
            lines += [f'{row["kind"]}: {row["file"]}: {row["detail"]}' for row in read_csv(out / 'problems.csv')]
    return lines


def trained(case: Case, path: str) -> list[str]:
    """What a training says before its first step, and where it loads each image: notes, or its error line."""
    lines = []
    try:
        config = load_config(path, data=DataArguments(str(case.folder)), mini=True, dataloaders=LOADERS)
        usual = '3 classes: |train: |val: |.*drawn for'  # of data without a defect
        lines += [line for line in config.own_data if not re.match(usual, line)]
        lines += check_annotations(config, LOADERS)
        for key in LOADERS:
            dataset = build_dataset(config[key].dataset)
            for index in range(len(dataset)):
                dataset[index]
    except (InputError, OSError) as error:
        lines.append(str(error))
    return lines


@pytest.mark.parametrize(('write', 'config'), [(coco_case, DETECTOR), (mask_case, SEGMENTOR)])
def test_a_random_defect_is_named(write: Callable, config: str, tool: InProcess, tmp_path: Path) -> None:
    """By inspect-data and by a training, neither of which ends with a traceback."""
    for seed in range(NUM_CASES):
        case = write(tmp_path / f'data_{seed}', seed)
        lines = inspected(case, config, tool), trained(case, config)
        for said, legal in zip(lines, case.legal):
            assert all(len(line.splitlines()) == 1 for line in said), (seed, said)
            assert legal or any(name in line for line in said for name in case.names), (seed, said)
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)
