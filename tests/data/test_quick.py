"""Quick transforms against mmdet's and mmseg's: the same pixels for the same random draws."""

import pickle
from pathlib import Path

import cv2
import mmcv
import numpy as np
import pytest
import torch
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmseg.datasets.transforms import PhotoMetricDistortion, RandomCrop

from bioattn_mm.data.masks import BoxedMasks
from bioattn_mm.data.mmseg_transforms import CountedRandomCrop, TablePhotoMetricDistortion
from bioattn_mm.data.samplers import seed_everything
from bioattn_mm.data.transforms import ChannelsFirst, in_order
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.mini import make_mini
from bioattn_mm.training.config.pipelines import find_datasets

from .conftest import assert_same_annotations

CONFIGS = 'mask_rcnn_micro_coco dino_4scale_micro_coco upernet_micro_ade20k mask2former_micro_ade20k'.split()
CONFIGS += 'mask2former_micro_coco mask2former_micro_coco_panoptic mask2former_tiny_ade20k_instance'.split()


@pytest.mark.parametrize('name', CONFIGS)
def test_training_samples_are_those_of_the_host(name: str, root: Path, workplace: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(root / 'benchmarks')
    from loader import with_host_transforms

    monkeypatch.chdir(workplace)
    path = f'configs/transnext/{name}.py'
    host, ours = make_mini(with_host_transforms(Config.fromfile(path))), load_config(path, mini=True)
    if 'mask2former_micro_coco' in name:  # as mmdet's own config loads images
        host.train_dataloader.dataset.pipeline[0].to_float32 = True
    init_default_scope(host.default_scope)
    theirs, quick = (DATASETS.build(next(find_datasets(config.train_dataloader))) for config in (host, ours))
    assert {'ChannelsFirst', 'InOrderRandomFlip'} <= {type(step).__name__ for step in quick.pipeline.transforms}
    assert 'bioattn_mm' not in str(host.train_dataloader)
    for index in range(6):
        samples = []
        for dataset in (theirs, quick):
            seed_everything(1, index)
            samples.append(dataset[index])
        expected, sample = samples
        assert expected['inputs'].shape == sample['inputs'].shape and sample['inputs'].is_contiguous()
        assert (expected['inputs'].float() - sample['inputs'].float()).abs().max() <= 1
        if sample['inputs'].dtype == expected['inputs'].dtype:
            assert torch.equal(expected['inputs'], sample['inputs'])
        expected, sample = (each['data_samples'] for each in samples)
        if 'masks' in sample.get('gt_instances', ()):
            assert isinstance(sample.gt_instances.masks, BoxedMasks)
        assert_same_annotations(expected, sample)


def random_masks(rng: np.random.Generator) -> np.ndarray:
    """Up to four masks; some are empty."""
    height, width = rng.integers(1, 120, 2)
    masks = np.zeros((rng.integers(0, 5), height, width), np.uint8)
    for mask in masks:
        top, left = rng.integers(0, height), rng.integers(0, width)
        part = mask[top : top + rng.integers(0, height), left : left + rng.integers(0, width)]
        part[:] = rng.integers(0, 2, part.shape)
    return masks


def assert_same_masks(boxed: BoxedMasks, expected: BitmapMasks) -> None:
    assert (boxed.height, boxed.width, len(boxed)) == (expected.height, expected.width, len(expected))
    assert boxed.areas.tolist() == expected.areas.tolist()
    assert torch.equal(boxed.get_bboxes('hbox').tensor, expected.get_bboxes('hbox').tensor)
    assert torch.equal(boxed.to_tensor(torch.float32, 'cpu'), expected.to_tensor(torch.float32, 'cpu'))
    copy = pickle.loads(pickle.dumps(boxed))
    assert np.array_equal(copy.masks, expected.masks) and isinstance(copy, BitmapMasks)
    # From here on it is an ordinary one.
    copy.masks[:] = 1
    assert copy.areas.tolist() == [boxed.height * boxed.width] * len(boxed)


@pytest.mark.parametrize('seed', range(40))
def test_boxed_masks_are_bitmaps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    masks = random_masks(rng)
    boxed, bitmaps = BoxedMasks.from_bitmaps(masks), BitmapMasks(masks, *masks.shape[1:])
    assert_same_masks(boxed, bitmaps)
    for _ in range(6):
        left, top = int(rng.integers(boxed.width)), int(rng.integers(boxed.height))
        name, arguments = [
            ('resize', [tuple(rng.integers(1, 200, 2).tolist())]),
            ('rescale', [tuple(rng.integers(20, 300, 2).tolist())]),
            ('rescale', [float(rng.uniform(0.5, 2))]),
            ('flip', [str(rng.choice(['horizontal', 'vertical', 'diagonal']))]),
            ('crop', [np.array([left, top, left + rng.integers(1, 100), top + rng.integers(1, 100)])]),
            ('pad', [(boxed.height + 3, boxed.width + 5)]),
            ('__getitem__', [rng.random(len(boxed)) < 0.8]),
        ][rng.integers(7)]
        boxed, bitmaps = (getattr(each, name)(*arguments) for each in (boxed, bitmaps))
        assert isinstance(boxed, BoxedMasks)
        assert_same_masks(boxed, bitmaps)
    assert_same_masks(BoxedMasks.cat([boxed, boxed]), BitmapMasks.cat([bitmaps, bitmaps]))


def test_boxed_masks_on_their_way_from_a_worker_are_small() -> None:
    masks = np.zeros((20, 800, 1333), np.uint8)
    masks[:, 300:340, 200:260] = 1
    assert len(pickle.dumps(BoxedMasks.from_bitmaps(masks))) < masks.nbytes / 100


@pytest.mark.parametrize('direction', ['horizontal', 'vertical', 'diagonal', None])
@pytest.mark.parametrize('shape', [(31, 50, 3), (31, 50)])
def test_in_order(direction: str | None, shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    flipped = mmcv.imflip(image, direction) if direction else image
    assert np.array_equal(in_order(flipped), flipped) and in_order(flipped).flags.c_contiguous
    packed = ChannelsFirst()(dict(img=flipped))['img']
    assert np.array_equal(packed, flipped)
    assert len(shape) == 2 or packed.transpose(2, 0, 1).flags.c_contiguous


@pytest.mark.parametrize(
    ('host', 'ours', 'dtypes'),
    [
        (RandomCrop, CountedRandomCrop, (np.uint8, np.uint8)),
        (RandomCrop, CountedRandomCrop, (np.uint8, np.int64)),
        (PhotoMetricDistortion, TablePhotoMetricDistortion, (np.uint8, np.uint8)),
        (PhotoMetricDistortion, TablePhotoMetricDistortion, (np.float32, np.uint8)),
    ],
)
def test_the_same_pixels_after_the_same_draws(host: type, ours: type, dtypes: tuple[type, type]) -> None:
    rng, drawn = np.random.default_rng(0), []
    labels = cv2.resize(rng.choice([0, 0, 0, 1, 2, 255], (9, 12)).astype(np.uint8), (200, 160), interpolation=0)
    labels[:80, :150] = 7
    image = rng.integers(0, 256, (160, 200, 3), np.uint8)
    arguments = dict(crop_size=(70, 60), cat_max_ratio=0.75) if host is RandomCrop else {}
    for seed in range(40):
        results = []
        for kind in (host, ours):
            np.random.seed(seed)
            results.append(kind(**arguments)(dict(img=image.astype(dtypes[0]), gt_seg_map=labels.astype(dtypes[1]))))
            results[-1]['next'] = np.random.rand()
        assert all(np.array_equal(results[0][key], results[1][key]) for key in results[0])
        drawn.append(results[0]['next'])
    assert len(set(drawn)) == 40
