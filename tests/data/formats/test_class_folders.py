"""Own data of classifiers: a folder of images for each class."""

import os
from collections import Counter
from pathlib import Path

import pytest
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from bioattn_mm.data.checks import Problem
from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.data.formats.class_folders import read_class_folders
from bioattn_mm.data.formats.folders import OwnData
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.samples import set_fraction

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / 'configs/convit/convit-tiny_8xb128_in1k.py'
# The names are in alphabetical order, those of files as odd as users'.
COLOURS = {'blue jay': (0, 0, 200), 'robin': (200, 60, 0), 'wren': (120, 90, 60)}


def write_classes(folder: Path, *classes: str, number: int = 20) -> Path:
    """Write images of one colour into folders of classes, some of them a folder deeper."""
    for name in classes:
        for index in range(number):
            path = folder / name / ('deeper' if index % 5 == 4 else '') / f'{index} ä.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new('RGB', (40, 36), COLOURS.get(name)).save(path)
    return folder


def read(folder: Path, **arguments: object) -> OwnData:
    return read_class_folders(DataArguments(str(folder), **arguments))


def samples(folder: Path, split: str) -> list[tuple[str, int]]:
    """Images and labels of a split as mmpretrain loads them."""
    config = load_config(CONFIG, data=DataArguments(str(folder)))
    init_default_scope('mmpretrain')
    dataset = DATASETS.build(dict(config[f'{split}_dataloader'].dataset, pipeline=[]))
    assert dataset.metainfo['classes'] == tuple(COLOURS)
    return [(sample['img_path'], sample['gt_label']) for sample in dataset]


def test_folders_of_splits_and_a_class_that_is_called_train(tmp_path: Path) -> None:
    """Labels are those of the training classes, also where a split has not all of them."""
    write_classes(tmp_path / 'Training', *COLOURS)
    write_classes(tmp_path / 'valid', *COLOURS, number=3)
    write_classes(tmp_path / 'test', 'blue jay', 'wren', number=2)
    for split, folder, number in (('train', 'Training', 60), ('val', 'valid', 9), ('test', 'test', 4)):
        found = samples(tmp_path, split)
        labels = {name: label for label, name in enumerate(COLOURS)}
        paths = (tmp_path / folder).rglob('*.png')
        expected = {(str(path), labels[path.relative_to(tmp_path / folder).parts[0]]) for path in paths}
        assert set(found) == expected and len(found) == number
    assert f'test: 4 images of {tmp_path / "test"}, none of robin' in read(tmp_path).notes
    assert read(write_classes(tmp_path / 'cars', 'bus', 'train', 'van', number=3)).classes == ('bus', 'train', 'van')


def test_hidden_files_and_folders_are_not_read(tmp_path: Path) -> None:
    """Such as the trash of a photo manager, the checkpoints of Jupyter, and what macOS adds."""
    write_classes(tmp_path, *COLOURS, number=4)
    for name in ('._1 ä.png', '.dtrash/x.png', 'deeper/.ipynb_checkpoints/x.png', '../__MACOSX/wren/x.png'):
        (tmp_path / 'wren' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'wren' / name).touch()
    found = [path for split in ('train', 'val') for path, _ in samples(tmp_path, split)]
    assert len(found) == 12 and not any('/.' in path.removeprefix(str(tmp_path)) for path in found)


def test_validation_images_are_a_tenth_of_each_class(tmp_path: Path) -> None:
    write_classes(tmp_path, *COLOURS)
    train, val = samples(tmp_path, 'train'), samples(tmp_path, 'val')
    assert Counter(label for _, label in val) == {0: 2, 1: 2, 2: 2}
    assert len({*train, *val}) == 60 and not {*train} & {*val}
    assert val == samples(tmp_path, 'val') == samples(tmp_path, 'test')


def test_model_and_fraction(tmp_path: Path) -> None:
    """Head, mixed labels and metrics have the data's classes; --fraction takes a part of each."""
    config = load_config(CONFIG, data=DataArguments(str(write_classes(tmp_path, *COLOURS))), mini=True)
    assert config.model.head.num_classes == config.model.data_preprocessor.num_classes == 3
    assert config.model.head.topk == config.test_evaluator.topk == (1,)
    assert not config.auto_scale_lr.enable and config.train_cfg.max_iters == 200  # as of the miniatures
    set_fraction(config, 0.5)
    init_default_scope('mmpretrain')
    dataset = DATASETS.build(config.train_dataloader.dataset)
    assert Counter(dataset.get_gt_labels().tolist()) == {0: 9, 1: 9, 2: 9}


def test_what_is_refused(tmp_path: Path) -> None:
    def reason(**arguments: object) -> str:
        with pytest.raises(InputError) as error:
            read(tmp_path, **arguments)
        return str(error.value)

    assert 'has no folders of classes' in reason()
    write_classes(tmp_path / 'train', 'robin', 'wren')
    assert '--reduce-zero-label is for label maps' in reason(reduce_zero_label=True)
    write_classes(tmp_path / 'val', 'blue jay')
    assert f'{tmp_path / "val" / "blue jay"} is of no class' in reason()
    empty = tmp_path / 'train' / 'blue jay'
    empty.mkdir()
    assert f'{empty} has no images' in reason()
    problems: list[Problem] = []
    odd = Path(os.fsdecode(os.fsencode(tmp_path / 'train') + b'/caf\xe9'))
    odd.mkdir()
    assert 'has a name that is no text in UTF-8' in reason()
    odd.rmdir()
    assert read(tmp_path, problems=problems).classes == tuple(COLOURS)
    assert problems == [Problem('class without images', str(empty))]
