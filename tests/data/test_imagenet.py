"""The miniature ImageNet, read by mmpretrain."""

from pathlib import Path

import pytest
import timm.data
from mmpretrain.datasets import ImageNet
from mmpretrain.datasets.categories import IMAGENET_CATEGORIES
from PIL import Image

from bioattn_mm.data.class_names import IMAGENET_CLASSES

from .conftest import NUM_TRAIN, NUM_VAL


def test_classes_are_those_of_imagenet() -> None:
    info = timm.data.ImageNetInfo()
    for name, (wnid, label) in IMAGENET_CLASSES.items():
        assert info.index_to_label_name(label) == wnid
        assert name in IMAGENET_CATEGORIES[label]


@pytest.mark.parametrize(('split', 'number'), [('train', NUM_TRAIN), ('val', NUM_VAL)])
def test_read_as_the_real_one(mini: dict[str, Path], split: str, number: int) -> None:
    dataset = ImageNet(data_root=str(mini['imagenet']), split=split)
    assert len(dataset) == number and len(dataset.CLASSES) == 1000
    labels = dict(IMAGENET_CLASSES.values())
    for index in range(number):
        info = dataset.get_data_info(index)
        assert info['gt_label'] == labels[Path(info['img_path']).parent.name]
        with Image.open(info['img_path']) as image:
            assert image.format == 'JPEG' and min(image.size) >= 128
    counts = [int((dataset.get_gt_labels() == label).sum()) for label in labels.values()]
    assert max(counts) - min(counts) <= 1  # the classes take turns
