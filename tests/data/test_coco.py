"""The miniature COCO through pycocotools and mmdet."""

import contextlib
import io
import json

import numpy as np
import pytest
from mmdet.datasets import CocoDataset
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from bioattn_mm.data.mini.coco import CATEGORY_IDS, polygons
from bioattn_mm.data.mini.objects import KINDS

from .conftest import NUM_TRAIN, NUM_VAL

DRAWN = {kind.coco for kind in KINDS.values() if kind.coco}


@pytest.fixture(params=[('train', NUM_TRAIN), ('val', NUM_VAL)], ids=['train', 'val'])
def split(request):
    return request.param


def test_category_names_and_ids():
    ids = list(CATEGORY_IDS.values())
    assert tuple(CATEGORY_IDS) == CocoDataset.METAINFO['classes']
    assert ids == sorted(ids)
    assert set(range(1, 91)) - set(ids) == {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}


def test_annotations_agree_with_their_segmentations(mini, split):
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(mini['coco'] / 'annotations' / f'instances_{split[0]}2017.json')
    assert len(coco.imgs) == split[1] and len(coco.cats) == 80 and coco.anns
    for annotation in coco.anns.values():
        image = coco.imgs[annotation['image_id']]
        mask = coco.annToMask(annotation)
        assert mask.shape == (image['height'], image['width'])
        assert mask.sum() == annotation['area'] > 0
        rows, columns = np.nonzero(mask)
        assert annotation['bbox'] == [
            columns.min(),
            rows.min(),
            columns.max() - columns.min() + 1,
            rows.max() - rows.min() + 1,
        ]
        if annotation['iscrowd']:
            assert annotation['segmentation']['size'] == [image['height'], image['width']]
        else:
            assert all(len(outline) >= 6 for outline in annotation['segmentation'])


def test_crowds_occur(mini):
    annotations = json.loads((mini['coco'] / 'annotations' / 'instances_train2017.json').read_text())
    assert any(annotation['iscrowd'] for annotation in annotations['annotations'])
    assert set(annotations) == {'info', 'licenses', 'images', 'annotations', 'categories'}


def test_loads_through_mmdet(mini, split):
    dataset = CocoDataset(
        data_root=str(mini['coco']),
        ann_file=f'annotations/instances_{split[0]}2017.json',
        data_prefix={'img': f'{split[0]}2017/'},
        pipeline=[
            {'type': 'LoadImageFromFile'},
            {'type': 'mmdet.LoadAnnotations', 'with_bbox': True, 'with_mask': True},
        ],
    )
    assert len(dataset) == split[1]
    classes = dataset.metainfo['classes']
    names = {classes[label] for sample in dataset for label in sample['gt_bboxes_labels']}
    assert len(names) >= 3 and names <= DRAWN
    for sample in dataset:
        height, width = sample['img'].shape[:2]
        assert (sample['gt_masks'].height, sample['gt_masks'].width) == (height, width)


def test_polygons_follow_the_mask():
    y, x = np.mgrid[:90, :120]
    blob = (((x - 60) / 40) ** 2 + ((y - 40) / 25) ** 2 < 1) & ~((x > 55) & (x < 62))
    at_the_edge = (np.abs(x - 5) < 9) & (np.abs(y - 80) < 12)
    for mask, parts in ((blob, 2), (at_the_edge, 1)):
        outlines = polygons(mask)
        assert len(outlines) == parts
        decoded = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(outlines, *mask.shape))).astype(bool)
        assert (decoded & mask).sum() / (decoded | mask).sum() > 0.97
