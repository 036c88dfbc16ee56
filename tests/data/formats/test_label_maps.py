"""Own data of segmentors: images and label maps, of indices or colours."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.data.formats.label_maps import count_values, read_masks, without_channels
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import build_dataset

from ...own_folders import MASK_CLASSES, UPRIGHT, images_of, labels, write_images, write_mask_folder
from .conftest import SEEDS, VAL_SEEDS, put

SEGMENTOR = str(Path(__file__).parents[2] / 'tools/upernet_small.py')


def segmentor(folder: Path, **arguments: object) -> Config:
    return load_config(SEGMENTOR, data=DataArguments(str(folder), **arguments))


def first_validated(config: Config) -> tuple[int, np.ndarray]:
    """The seed of the first validation image, and its label map as it is loaded."""
    dataset = config.val_dataloader.dataset
    dataset.pipeline = [step for step in dataset.pipeline if step.type != 'Resize']
    init_default_scope('mmseg')
    sample = build_dataset(dataset)[0]['data_samples']
    return int(Path(sample.img_path).stem.split('_')[1]), sample.gt_sem_seg.data[0].numpy()


LAYOUTS = [  # of images and label maps for training, validation and test
    'images/train masks/train images/val masks/val',
    'images/training annotations/training images/validation annotations/validation',
    'train/images train/labels valid/images valid/labels',
    'img_dir/train ann_dir/train img_dir/val ann_dir/val',
    'images/Train masks/Train images/Val masks/Val images/Test masks/Test',
]


@pytest.mark.parametrize('layout', LAYOUTS)
def test_layouts(layout: str, tmp_path: Path) -> None:
    places = layout.split()
    for seeds, *pair in zip((SEEDS, VAL_SEEDS, VAL_SEEDS), places[::2], places[1::2]):
        write_mask_folder(tmp_path, seeds, *pair)
    unlabelled = (tmp_path / places[0]).with_name('unlabelled')
    write_images(unlabelled, SEEDS)
    own = read_masks(DataArguments(str(tmp_path)))
    assert own.classes == MASK_CLASSES
    train, val = (images_of(own.datasets[split]) for split in ('train', 'val'))
    assert len(train) == len(SEEDS) and len(val) == 4 and ('test' in own.datasets) == ('Test' in layout)
    assert {path.suffix for path in train} == {'.jpg', '.png'}
    assert layout.startswith('train/') or f'not used: the images of {unlabelled}' in own.notes[0]


def test_names_in_another_spelling_are_said(scenes: Path) -> None:
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


@pytest.mark.parametrize('channels', [1, 2, 3, 4])
def test_label_maps_saved_as_images(channels: int) -> None:
    labels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    image = np.stack([labels] * channels, axis=-1)
    if channels in (2, 4):
        image[..., -1] = 255
    assert np.array_equal(without_channels(image), labels)
    coloured = np.stack([labels, labels, 2 * labels], axis=-1)
    assert np.array_equal(without_channels(coloured), coloured)


def test_zero_that_does_not_count(scenes: Path) -> None:
    (scenes / 'classes.txt').write_text('bolt\nnut\n')
    with pytest.raises(InputError, match=r'label map \S+ has the value 2, expected 0 to 1 for 2 classes, or 255'):
        read_masks(DataArguments(str(scenes)))
    seed, found = first_validated(segmentor(scenes, reduce_zero_label=True))
    expected = labels(seed).astype(int) - 1
    expected[(expected == -1) | (expected == 254)] = 255
    np.testing.assert_array_equal(found, expected)
    (scenes / 'classes.txt').write_text('bolt\n')
    with pytest.raises(InputError, match="one class, 'bolt', .* such as background and bolt in classes.txt"):
        read_masks(DataArguments(str(scenes), reduce_zero_label=True))


def test_label_maps_of_turned_images(scenes: Path) -> None:
    """WebP files that EXIF data turn, as the label maps are."""
    for path in (scenes / 'images').iterdir():
        label_map = scenes / f'masks/{path.stem}.png'
        Image.open(label_map).transpose(Image.Transpose.ROTATE_270).save(label_map)
        Image.open(path).save(path.with_suffix('.webp'), exif=UPRIGHT)
        path.unlink()
    seed, found = first_validated(segmentor(scenes))
    np.testing.assert_array_equal(found, np.rot90(labels(seed), 3))


BAD = [
    (lambda folder: shutil.rmtree(folder / 'masks'), 'no images and label maps in .*scenes: looked for'),
    (
        lambda folder: [path.rename(path.with_name(f'x{path.name}')) for path in (folder / 'masks').iterdir()],
        'no image of .*images has a label map in .*masks: expected .png files of the same names as the 8 images',
    ),
    (
        lambda folder: [
            shutil.copytree(folder / name, folder / 'val').rename(folder / name / 'val')
            for name in ('images', 'masks')
        ],
        'images holds the images of val, too, in .*images/val: put those for training into ',
    ),
    (lambda folder: (folder / 'classes.txt').unlink(), 'no names of classes: looked for classes.txt, one name'),
    (colour_masks, 'is a colour image: expected a palette.txt'),
    (
        lambda folder: rewrite_masks(folder, lambda values: np.where(values == 1, 255, 0).astype(np.uint8)),
        'have the values 0 and 255 alone, and 255 does not count: expected the indices of the classes',
    ),
    (put('palette.txt', f'{"9" * 5000} 0 0 bolt\n'), "has the line '9+ 0 0 bolt', expected R G B NAME with three"),
    (
        put('palette.txt', '1 0 0 bolt\n2 0 0 nut\n3 0 0 screw\n'),
        'the classes bolt, nut, screw in its palette file, and table, bolt, nut in classes.txt: expected the same',
    ),
    (put('classes.txt', '\n'.join(map(str, range(300)))), '300 classes: expected at most 255, as the value 255'),
    (put('classes.txt', '\n'), 'classes.txt names no classes'),
    (put('classes.txt', 'a\nb\na\n'), "the class 'a' stands twice"),
    (put('classes.txt', 'table\nbolt\nnut\n'.encode('utf-16')), 'classes.txt is no text in UTF-8'),
    (put('masks/part_000.png', ''), 'cannot read the label map .*part_000.png: it is no image, or'),
]


@pytest.mark.parametrize(('damage', 'message'), BAD)
def test_what_is_refused(damage: Callable, message: str, scenes: Path) -> None:
    damage(scenes)
    with pytest.raises(InputError, match=message):
        segmentor(scenes)


@pytest.mark.parametrize(
    ('dtype', 'values'), [('bool', [0, 1]), ('uint8', [3, 255]), ('uint16', [7, 300]), ('int32', [-5, 300])]
)
def test_values_and_how_often_each_occurs(dtype: str, values: list[int]) -> None:
    least, most = values
    found = count_values(np.array([[most, least], [most, most]], dtype))
    assert [each.tolist() for each in found] == [values, [1, 3]]
