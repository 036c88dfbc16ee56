"""The miniature ADE20K through mmseg, and the baseline against mmseg's metric."""

import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.datasets import ADE20KDataset
from mmseg.evaluation import IoUMetric
from mmseg.structures import SegDataSample
from PIL import Image

from bioattn_mm.data.class_names import ADE20K_CLASSES
from bioattn_mm.data.mini.ade20k import majority_baseline

from .conftest import NUM_TRAIN, NUM_VAL


def load(root, split):
    return ADE20KDataset(
        data_root=str(root),
        data_prefix={'img_path': f'images/{split}', 'seg_map_path': f'annotations/{split}'},
        pipeline=[{'type': 'LoadImageFromFile'}, {'type': 'mmseg.LoadAnnotations', 'reduce_zero_label': True}],
    )


def test_class_names():
    # mmseg's names, one of which ends in a space.
    assert tuple(name.strip() for name in ADE20KDataset.METAINFO['classes']) == ADE20K_CLASSES


@pytest.mark.parametrize('split, count', [('training', NUM_TRAIN), ('validation', NUM_VAL)])
def test_loads_through_mmseg(mini, split, count):
    dataset = load(mini['ade20k'], split)
    assert len(dataset) == count
    for sample in dataset:
        labels = sample['gt_seg_map']
        assert labels.shape == sample['img'].shape[:2]
        assert min(labels.shape) >= 128 and labels.shape[0] != labels.shape[1]
        assert set(np.unique(labels)) <= {*range(150), 255}
        assert ADE20K_CLASSES.index('sky') in labels


def test_annotations_are_grey_values_with_unlabelled_pixels(mini):
    paths = sorted((mini['ade20k'] / 'annotations').glob('*/*.png'))
    images = [Image.open(path) for path in paths]
    assert {image.mode for image in images} == {'L'}
    assert any((np.array(image) == 0).any() for image in images)


def test_majority_baseline_is_what_the_metric_says(mini):
    name, miou = majority_baseline(mini['ade20k'])
    dataset = load(mini['ade20k'], 'validation')
    metric = IoUMetric(ignore_index=255)
    metric.dataset_meta = dataset.metainfo
    for sample in dataset:
        labels = torch.from_numpy(sample['gt_seg_map'].astype(np.int64))[None]
        prediction = torch.full_like(labels, ADE20K_CLASSES.index(name))
        data_sample = SegDataSample(gt_sem_seg=PixelData(data=labels), pred_sem_seg=PixelData(data=prediction))
        metric.process({}, [data_sample.to_dict()])
    assert metric.evaluate(len(dataset))['mIoU'] == pytest.approx(miou, abs=0.005)
