"""Reading folders of own data, and what they change in a config."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.data.formats.coco import read_coco_file
from bioattn_mm.data.formats.detectors import read_objects
from bioattn_mm.data.formats.folders import OwnData
from bioattn_mm.data.formats.label_maps import labels_of_colours, read_masks
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.own_data import keep_data_files
from bioattn_mm.training.config.pipelines import build_dataset, find_datasets

from ...own_folders import CLASSES, MASK_CLASSES, coco, labels, write_coco_folder, write_images, write_mask_folder

ROOT = Path(__file__).parents[3]
SEGMENTOR = str(ROOT / 'tests/tools/upernet_small.py')
NUM_IMAGES = 8
SEEDS, VAL_SEEDS = range(NUM_IMAGES), range(50, 54)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return write_coco_folder(tmp_path / 'parts', SEEDS)


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    return write_mask_folder(tmp_path / 'scenes', SEEDS)


def detection(data: Path | None = None, **arguments: Path) -> OwnData:
    """Own data of a detector with masks."""
    places = {name: str(path) for name, path in dict(arguments, data=data).items() if path}
    return read_objects(DataArguments(**places), with_mask=True)


def segmentor(folder: Path, **arguments: object) -> Config:
    """The config of a segmentor with own data."""
    return load_config(SEGMENTOR, data=DataArguments(str(folder), **arguments))


def first_validated(config: Config) -> tuple[int, np.ndarray]:
    """The seed of the first validation image of a segmentor, and its label map as it is loaded."""
    dataset = config.val_dataloader.dataset
    dataset.pipeline = [step for step in dataset.pipeline if step.type != 'Resize']
    init_default_scope('mmseg')
    sample = build_dataset(dataset)[0]['data_samples']
    return int(Path(sample.img_path).stem.split('_')[1]), sample.gt_sem_seg.data[0].numpy()


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_splits(folder: Path, images: str, annotations: str, before: str = '', **splits: range) -> None:
    """A folder of images and a file of annotations for each split, with its name for `{}`."""
    for split, seeds in splits.items():
        names = [before.format(split) + name for name in write_images(folder / images.format(split), seeds)]
        write_json(folder / annotations.format(split), coco(seeds, names))


def coco_2017(folder: Path) -> None:
    """As the real COCO, with the other files that it has."""
    for kind in ('captions', 'instances', 'person_keypoints'):
        write_splits(folder, '{}2017', f'annotations/{kind}_{{}}2017.json', train=SEEDS, val=VAL_SEEDS)
    write_json(folder / 'annotations/image_info_test2017.json', dict(images=[]))


def images_by_split(folder: Path) -> None:
    """Images of the same names in both splits."""
    write_splits(folder, 'images/{}', 'annotations/{}.json', train=SEEDS, val=SEEDS[:4])


def images_together(folder: Path) -> None:
    write_splits(folder, 'images', 'annotations/instances_{}.json', train=SEEDS, validation=VAL_SEEDS)


def roboflow(folder: Path) -> None:
    """As Roboflow exports: the annotations beside the images, a category for all others, a test split."""
    write_splits(folder, '{}', '{}/_annotations.coco.json', train=SEEDS, valid=VAL_SEEDS, test=range(60, 62))
    for path in folder.glob('*/*.json'):
        parts = [dict(each, supercategory='parts') for each in json.loads(path.read_text())['categories']]
        change(path.parent, path.name, categories=[dict(id=0, name='parts', supercategory='none'), *parts])


def folders_in_names(folder: Path) -> None:
    write_splits(folder, '{}', '{}.json', '{}/', train=SEEDS, val=VAL_SEEDS)


COCO_LAYOUTS = (coco_2017, images_by_split, images_together, roboflow, folders_in_names)


def images_of(dataset: dict) -> list[Path]:
    """The files that a dataset of mmdet or mmseg would load, all of which must exist."""
    assert [*find_datasets(dataset)] == [dataset]  # where a training looks for the folders of its data
    init_default_scope('mmdet' if dataset['type'] == 'CocoDataset' else 'mmseg')
    dataset = dict(dataset, pipeline=[], metainfo=dict(classes=CLASSES, palette=[(0, 0, i) for i in range(3)]))
    built = DATASETS.build(dataset)
    paths = [Path(built.get_data_info(i)['img_path']) for i in range(len(built))]
    assert all(path.is_file() for path in paths)
    return paths


@pytest.mark.parametrize('write', COCO_LAYOUTS, ids=lambda write: write.__name__)
def test_layouts_of_coco(write: Callable, tmp_path: Path) -> None:
    write(tmp_path)
    own = detection(tmp_path)
    assert own.classes == CLASSES
    train, val = (images_of(own.datasets[split]) for split in ('train', 'val'))
    assert len(train) == NUM_IMAGES and len(val) == 4 and not set(train) & set(val)
    assert ('test' in own.datasets) == (write is roboflow)
    assert not any('numbered' in note for note in own.notes)


def test_a_single_file_is_split_at_random_and_always_the_same(tmp_path: Path) -> None:
    folder = write_coco_folder(tmp_path / 'parts', range(30))
    before = sorted(folder.rglob('*'))
    parts = []
    for path in (folder, folder / 'annotations.json'):
        own = detection(path)
        parts.append([images_of(own.datasets[split]) for split in ('train', 'val')])
    assert parts[0] == parts[1]
    train, val = parts[0]
    assert len(val) == 3 and len(train) == 27 and not set(train) & set(val)
    # Not the first ones or the last ones.
    assert val not in (sorted(train + val)[:3], sorted(train + val)[-3:])
    assert any('3 images drawn for validation' in note for note in own.notes)
    assert sorted(folder.rglob('*')) == before


def test_what_mmdet_needs_is_made_up_for(tmp_path: Path) -> None:
    """Area, iscrowd and ids of annotations, and categories in one order."""
    images_by_split(tmp_path)
    path = tmp_path / 'annotations/val.json'
    content = json.loads(path.read_text())
    content['categories'].reverse()
    for annotation in content['annotations']:
        del annotation['id']
    write_json(path, content)
    own = detection(tmp_path)
    init_default_scope('mmdet')
    sizes = []
    for split in ('train', 'val'):
        dataset = DATASETS.build(dict(own.datasets[split], pipeline=[], metainfo=dict(classes=own.classes)))
        instances = dataset.get_data_info(0)['instances']
        sizes.append([(instance['bbox_label'], instance['bbox']) for instance in instances])
    # The same image is the first of both.
    assert sizes[0] == sizes[1]
    assert len({label for label, _ in sizes[0]}) > 1
    assert sum('categories were brought into the order' in note for note in own.notes) == 1
    written = json.loads(Path(own.datasets['val']['ann_file']).read_text())['annotations']
    assert all(each['area'] > 0 and each['iscrowd'] == 0 for each in written)
    assert len({each['id'] for each in written}) == len(written)


def test_a_box_without_area_is_as_large_as_a_box_can_be(parts: Path) -> None:
    """The copy with its area is read, too: the entry of which something is said is one of the file."""
    first, *others = json.loads((parts / 'annotations.json').read_text())['annotations']
    change(parts, annotations=[dict(first, bbox=[0, 0, 1e12, 1e12]), *others])
    for dataset in detection(parts).datasets.values():
        assert not read_coco_file(dataset['ann_file']).faults


def test_training_and_validation_data_in_two_places(parts: Path, tmp_path: Path) -> None:
    second = write_coco_folder(tmp_path / 'second', VAL_SEEDS)
    for train, val in ((parts, second), (parts / 'annotations.json', second / 'annotations.json')):
        own = detection(train_data=train, val_data=val)
        assert [len(images_of(own.datasets[split])) for split in ('train', 'val')] == [NUM_IMAGES, 4]
    assert list(detection(val_data=second).datasets) == ['val']


def change(folder: Path, name: str = 'annotations.json', **keys: object) -> None:
    path = folder / name
    write_json(path, {**json.loads(path.read_text()), **keys})


def link_to_nothing(folder: Path) -> None:
    (folder / 'annotations.json').unlink()
    (folder / 'annotations.json').symlink_to('gone.json')


def empty_test_split(folder: Path) -> None:
    (folder / 'annotations.json').rename(folder / 'test.json')
    change(folder, 'test.json', annotations=[])


BOX = dict(id=1, image_id=10, category_id=2)  # but for the box
BAD_COCO = {
    'nothing there': (shutil.rmtree, '--data not found: .*parts'),
    'no JSON': (
        lambda folder: (folder / 'annotations.json').unlink(),
        r"no annotations in COCO's format in .*parts: looked for \*.json, annotations/\*.json",
    ),
    'a link to nothing': (
        link_to_nothing,
        "no annotations in COCO's format in .*annotations.json is a link to gone.json, which is not there",
    ),
    'another JSON': (lambda folder: write_json(folder / 'annotations.json', [1]), "no annotations in COCO's format"),
    'two files': (
        lambda folder: shutil.copy(folder / 'annotations.json', folder / 'more.json'),
        'parts has 2 files of annotations for training: annotations.json, more.json; name one with --train-data',
    ),
    'images elsewhere': (
        lambda folder: shutil.rmtree(folder / 'images'),
        'annotations.json names the image part_000.jpg, which is in none of the folders .*parts',
    ),
    'no images in the file': (lambda folder: change(folder, images=[]), 'annotations.json has no images'),
    'no categories': (lambda folder: change(folder, categories=[]), 'has no categories'),
    'a test split alone': (empty_test_split, 'test.json has no annotations, and there are no other da'),
    'boxes alone': (
        lambda folder: change(folder, annotations=[dict(BOX, bbox=[1, 1, 9, 9])]),
        'has boxes without segmentations, and this model learns masks: take a config that detects boxes',
    ),
    'no box': (lambda folder: change(folder, annotations=[BOX]), 'annotations.json: annotation 1: no bbox'),
    'category twice': (
        lambda folder: change(folder, categories=[dict(id=i, name='bolt') for i in (2, 7)]),
        "has 2 categories 'bolt', expected one",
    ),
}


@pytest.mark.parametrize(('damage', 'message'), BAD_COCO.values(), ids=BAD_COCO)
def test_coco_that_is_refused(damage: Callable, message: str, parts: Path) -> None:
    damage(parts)
    with pytest.raises(InputError, match=message):
        detection(parts)


def test_a_class_without_objects_that_is_its_own_supercategory(parts: Path) -> None:
    categories = json.loads((parts / 'annotations.json').read_text())['categories']
    change(parts, categories=[*categories, dict(id=99, name='screw', supercategory='screw')])
    assert detection(parts).classes[-1] == 'screw'


def test_validation_data_of_other_classes(tmp_path: Path) -> None:
    images_by_split(tmp_path)
    path = tmp_path / 'annotations/val.json'
    path.write_text(path.read_text().replace('washer', 'screw'))
    with pytest.raises(InputError, match="val.json has 0 categories 'washer', expected one"):
        detection(tmp_path)


MASK_LAYOUTS = [  # of images and label maps for training and validation
    'images/train masks/train images/val masks/val',
    'images/training annotations/training images/validation annotations/validation',
    'train/images train/labels valid/images valid/labels',
    'img_dir/train ann_dir/train img_dir/val ann_dir/val',
]


@pytest.mark.parametrize('layout', MASK_LAYOUTS)
def test_layouts_of_masks(layout: str, scenes: Path, tmp_path: Path) -> None:
    folder, places = tmp_path / 'laid_out', layout.split()
    for source in (scenes, write_mask_folder(tmp_path / 'val', VAL_SEEDS)):
        for name in ('images', 'masks'):
            shutil.copytree(source / name, folder / places.pop(0))
    shutil.copy(scenes / 'classes.txt', folder)
    own = read_masks(DataArguments(str(folder)))
    assert own.classes == MASK_CLASSES
    train, val = (images_of(own.datasets[split]) for split in ('train', 'val'))
    assert len(train) == NUM_IMAGES and len(val) == 4
    assert {path.suffix for path in train} == {'.jpg', '.png'}


def test_names_in_another_spelling_are_said(scenes: Path, parts: Path) -> None:
    """Capitals, and accents that macOS takes apart: the names look alike."""
    for kind, stem in (('images', 'Stu\u0308ck'), ('masks', 'St\u00fcck')):
        path = next((scenes / kind).glob('part_003.*'))
        path.rename(path.with_stem(stem))
    (scenes / 'masks/part_004.png').rename(scenes / 'masks/part_004.PNG')
    problems = []
    own = read_masks(DataArguments(str(scenes), problems=problems))
    without = {Path(problem.file).stem: problem.detail for problem in problems if 'image without' in problem.kind}
    assert without == {
        'part_004': "there is 'part_004.PNG', spelt in another way than 'part_004.png'",
        'Stu\u0308ck': "there is 'St\\xfcck.png', spelt in another way than 'Stu\\u0308ck.png'",
    }
    assert any(': 2 left out: image without label map, such as' in note for note in own.notes)

    for path in (parts / 'images').iterdir():
        path.rename(path.with_name(path.name.upper()))
    with pytest.raises(InputError, match="which is in none of the folders .*; there is 'PART_000.JPG', spelt in"):
        detection(parts)


COLOURS = [(0, 0, 0), (200, 10, 30), (0, 128, 255), (255, 255, 255)]


def rewrite_masks(folder: Path, function: Callable) -> None:
    for path in (folder / 'masks').iterdir():
        Image.fromarray(function(np.array(Image.open(path)))).save(path)


def colour_masks(folder: Path) -> None:
    """Turn the label maps into RGB images; the last colour is of the pixels that do not count."""
    rewrite_masks(folder, lambda values: np.array(COLOURS, np.uint8)[np.where(values == 255, 3, values)])


PALETTES = {
    'palette.txt': '# R G B NAME\n0 0 0 table\n200,10,30 bolt\n0 128 255\tnut\n255 255 255 ignore\n',
    'labelmap.txt': '# label:color_rgb:parts:actions\ntable:0,0,0::\nbolt:200,10,30::\nnut:0,128,255::\n'
    'ignore:255,255,255::\n',
}


@pytest.mark.parametrize('name', PALETTES)
def test_label_maps_of_colours(name: str, scenes: Path) -> None:
    colour_masks(scenes)
    (scenes / name).write_text(PALETTES[name])
    for _ in range(2):
        config = segmentor(scenes)
        assert config.train_dataloader.dataset.metainfo == dict(classes=MASK_CLASSES, palette=COLOURS[:3])
        seed, found = first_validated(config)
        np.testing.assert_array_equal(found, labels(seed))
        (scenes / 'classes.txt').unlink(missing_ok=True)  # the palette has the names, too


def test_colours_that_the_palette_does_not_have() -> None:
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[1, 2] = (3, 2, 1)  # B, G, R
    with pytest.raises(ValueError, match='has 1 pixels of the colour 1 2 3, which the palette file does not have'):
        labels_of_colours(pixels, COLOURS, 3)


def test_zero_that_does_not_count(scenes: Path) -> None:
    (scenes / 'classes.txt').write_text('bolt\nnut\n')
    with pytest.raises(InputError, match=r'label map \S+ has the value 2, expected 0 to 1 for 2 classes, or 255'):
        read_masks(DataArguments(str(scenes)))
    seed, found = first_validated(segmentor(scenes, reduce_zero_label=True))
    expected = labels(seed).astype(int) - 1
    expected[(expected == -1) | (expected == 254)] = 255
    np.testing.assert_array_equal(found, expected)


def validation_below_training(folder: Path) -> None:
    for name in ('images', 'masks'):
        (folder / name).rename(folder / 'val')
        (folder / name).mkdir()
        (folder / 'val').rename(folder / name / 'val')
        for path in (folder / name / 'val').iterdir():
            shutil.copy(path, folder / name)


BAD_MASKS = {
    'no folders': (
        lambda folder: shutil.rmtree(folder / 'masks'),
        'no images and label maps in .*scenes: looked for',
    ),
    'no pairs': (
        lambda folder: [path.rename(path.with_name(f'x{path.name}')) for path in (folder / 'masks').iterdir()],
        'no image of .*images has a label map in .*masks: expected .png files of the same names as the 8 images',
    ),
    'validation below training': (
        validation_below_training,
        'images holds the images of val, too, in .*images/val: put those for training into .*images/train, and their',
    ),
    'no classes': (
        lambda folder: (folder / 'classes.txt').unlink(),
        'no names of classes: looked for classes.txt, one name a line, and palette.txt',
    ),
    'colours without palette': (colour_masks, 'is a colour image: expected a palette.txt'),
    '0 and 255 alone': (
        lambda folder: rewrite_masks(folder, lambda values: np.where(values == 1, 255, 0).astype(np.uint8)),
        'have the values 0 and 255 alone, and 255 does not count: expected the indices of the classes',
    ),
    'bad palette': (
        lambda folder: (folder / 'palette.txt').write_text('300 0 0 bolt\n'),
        "palette.txt has the line '300 0 0 bolt', expected R G B NAME with three numbers of 0 to 255",
    ),
    'palette of other names': (
        lambda folder: (folder / 'palette.txt').write_text('1 0 0 bolt\n2 0 0 nut\n3 0 0 screw\n'),
        'the classes bolt, nut, screw in its palette file, and table, bolt, nut in classes.txt: expected the same',
    ),
    'class twice': (lambda folder: (folder / 'classes.txt').write_text('a\nb\na\n'), "the class 'a' stands twice"),
    'damaged': (
        lambda folder: (folder / 'masks/part_000.png').write_bytes(b''),
        'cannot read the label map .*part_000.png: it is no image, or of a type that cannot be read$',
    ),
}


@pytest.mark.parametrize(('damage', 'message'), BAD_MASKS.values(), ids=BAD_MASKS)
def test_masks_that_are_refused(damage: Callable, message: str, scenes: Path) -> None:
    damage(scenes)
    with pytest.raises(InputError, match=message):
        segmentor(scenes)


def test_a_config_of_a_detector(parts: Path, tmp_path: Path) -> None:
    path = str(ROOT / 'configs/transnext/mask_rcnn_tiny_coco.py')
    before = Config.fromfile(path)
    config = load_config(path, data=DataArguments(str(parts)))
    assert config.model.roi_head.mask_head.num_classes == 3
    assert config.auto_scale_lr == dict(enable=True, base_batch_size=16)
    named = load_config(path, data=DataArguments(str(parts)), cfg_options={'optim_wrapper.optimizer.lr': 1e-3})
    assert named.optim_wrapper.optimizer.lr == 1e-3 and not named.auto_scale_lr.enable
    dataset = config.train_dataloader.dataset
    assert dataset.type == 'CocoDataset' and dataset.filter_cfg == before.train_dataloader.dataset.filter_cfg
    assert len(dataset.pipeline) == len(load_config(path).train_dataloader.dataset.pipeline)
    for evaluator in (config.val_evaluator, config.test_evaluator):
        assert evaluator.ann_file == config.val_dataloader.dataset.ann_file
        assert evaluator.metric == ['bbox', 'segm']

    # The files of the split move to the work dir.
    keep_data_files(config, str(tmp_path / 'run'))
    files = {config.test_evaluator.ann_file, config.test_dataloader.dataset.ann_file}
    assert files == {f'{tmp_path}/run/data/val.json'}
    assert len(images_of(config.val_dataloader.dataset)) == 1


def test_wrapped_datasets_and_other_evaluators(parts: Path, tmp_path: Path) -> None:
    path = tmp_path / 'config.py'
    path.write_text(
        f"_base_ = '{ROOT}/configs/transnext/dino_4scale_micro_coco.py'\n"
        "inner = dict(type='VOCDataset', data_root='data/voc', ann_file='a.txt', pipeline=[dict(type='Resize')])\n"
        "wrapped = dict(type='ConcatDataset', datasets=[inner, inner])\n"
        "mosaic = dict(type='MultiImageMixDataset', dataset=wrapped, pipeline=[dict(type='Mosaic')])\n"
        "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=3, dataset=mosaic))\n"
        "val_evaluator = dict(_delete_=True, type='VOCMetric', metric='mAP')\n"
        "test_evaluator = [dict(type='VOCMetric', metric='mAP')]\n"
    )
    config = load_config(str(path), data=DataArguments(str(parts)))
    assert config.train_dataloader.dataset.type == 'MultiImageMixDataset'
    inner = config.train_dataloader.dataset.dataset
    assert inner.type == 'CocoDataset' and inner.pipeline == [dict(type='Resize')]
    ann_file = config.val_dataloader.dataset.ann_file
    assert config.val_evaluator == dict(type='CocoMetric', metric='bbox', ann_file=ann_file)
    assert config.test_evaluator == [config.val_evaluator]
    assert config.default_hooks.checkpoint.save_best == 'auto'


def test_a_quick_trial_has_the_sizes_of_the_miniatures_and_the_own_data(scenes: Path) -> None:
    path = str(ROOT / 'configs/transnext/upernet_tiny_ade20k.py')
    config = load_config(path, data=DataArguments(str(scenes)), mini=True)
    assert config.train_dataloader.dataset.data_prefix.img_path == str(scenes / 'images')
    assert config.model.test_cfg.crop_size == (128, 128) and config.train_cfg.max_iters == 200
    assert config.model.decode_head.num_classes == 3
    assert not config.auto_scale_lr.enable


def test_own_data_of_another_library(tmp_path: Path) -> None:
    path = tmp_path / 'config.py'
    path.write_text("model = dict()\ndefault_scope = 'mmpose'\ntest_dataloader = test_evaluator = dict()\n")
    with pytest.raises(InputError, match='own data are for .* and classifiers, .* is a config of mmpose'):
        load_config(str(path), data=DataArguments(str(tmp_path)))


def test_validation_on_the_training_images_is_said(scenes: Path, tmp_path: Path) -> None:
    link = tmp_path / 'link'
    link.symlink_to(scenes)
    for path, said in ((scenes, 1), (link, 1), (write_mask_folder(tmp_path / 'more', VAL_SEEDS), 0)):
        config = segmentor(scenes, val_data=str(path))
        assert sum('validated on the images that are trained on' in line for line in config.own_data) == said
    parts = tmp_path / 'parts'
    images_by_split(parts)
    for val_data, said in ((parts, 0), (parts / 'annotations/train.json', 1)):
        own = detection(parts, val_data=val_data)
        assert sum('validated on the images that are trained on' in line for line in own.notes) == said


def test_validation_images_alone_are_nothing_to_train_on(scenes: Path) -> None:
    with pytest.raises(InputError, match='no training images: found val alone; name them with --train-data'):
        load_config(SEGMENTOR, data=DataArguments(val_data=str(scenes)), dataloaders=('train_dataloader',))
