"""A fraction of the images of each class."""

from pathlib import Path

import numpy as np
import pytest
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, DefaultScope

from bioattn_mm.errors import InputError

COUNTS = dict(ant=20, bee=10, cow=4, dog=1)


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of classes with different numbers of (empty) images."""
    folder = tmp_path_factory.mktemp('animals')
    for name, number in COUNTS.items():
        (folder / name).mkdir()
        for index in range(number):
            (folder / name / f'{index}.jpg').touch()
    return folder


def part(folder: Path, fraction: float, **options: object) -> BaseDataset:
    dataset = dict(type='CustomDataset', data_root=str(folder), data_prefix='')
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        return DATASETS.build(
            dict(type='bioattn_mm.class_balanced_part', fraction=fraction, dataset=dataset, **options)
        )


def images(dataset: BaseDataset) -> list[str]:
    return [dataset.get_data_info(index)['img_path'] for index in range(len(dataset))]


def test_as_much_of_every_class(folder: Path) -> None:
    dataset = part(folder, 0.3)
    assert np.bincount(dataset.get_gt_labels()).tolist() == [6, 3, 1, 1]
    assert len(set(images(dataset))) == len(dataset) == 11
    assert len(part(folder, 1)) == sum(COUNTS.values())


def test_the_same_images_every_time_and_those_of_less_among_those_of_more(folder: Path) -> None:
    np.random.seed(1)
    first = images(part(folder, 0.3))
    np.random.seed(2)
    assert images(part(folder, 0.3)) == first
    assert images(part(folder, 0.3, seed=1)) != first
    assert set(first) < set(images(part(folder, 0.5)))


@pytest.mark.parametrize('fraction', [0, 1.5])
def test_no_such_fraction(folder: Path, fraction: float) -> None:
    with pytest.raises(InputError, match=f'above 0 and at most 1, got {fraction}'):
        part(folder, fraction)
