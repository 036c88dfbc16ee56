"""The miniature COCO through pycocotools and mmdet."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from mmdet.datasets import CocoDataset, CocoPanopticDataset
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from bioattn_mm.data.mini.coco import CATEGORY_IDS, PANOPTIC_CATEGORIES, polygons
from bioattn_mm.data.mini.objects import KINDS

from .conftest import NUM_TRAIN, NUM_VAL, detection_dataset

PANOPTIC = 'annotations/panoptic_train2017'


def test_category_names_and_ids() -> None:
    ids = list(CATEGORY_IDS.values())
    assert tuple(CATEGORY_IDS) == CocoDataset.METAINFO['classes']
    assert ids == sorted(ids)
    assert set(range(1, 91)) - set(ids) == {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
    names, things = (CocoPanopticDataset.METAINFO[key] for key in ('classes', 'thing_classes'))
    assert tuple(category['name'] for category in PANOPTIC_CATEGORIES) == names
    assert all(category['isthing'] == (category['name'] in things) for category in PANOPTIC_CATEGORIES)
    assert (PANOPTIC_CATEGORIES[80]['id'], PANOPTIC_CATEGORIES[-1]['id']) == (92, 200)
    assert sum(category['id'] for category in PANOPTIC_CATEGORIES) == 11963


@pytest.mark.parametrize(('split', 'number'), [('train', NUM_TRAIN), ('val', NUM_VAL)])
def test_annotations_agree_with_their_segmentations(mini: dict[str, Path], split: str, number: int) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(mini['coco'] / f'annotations/instances_{split}2017.json')
    assert len(coco.imgs) == number and len(coco.cats) == 80 and coco.anns
    assert set(coco.dataset) == {'info', 'licenses', 'images', 'annotations', 'categories'}
    for annotation in coco.anns.values():
        size = [coco.imgs[annotation['image_id']][side] for side in ('height', 'width')]
        mask = coco.annToMask(annotation)
        assert list(mask.shape) == size and mask.sum() == annotation['area'] > 0
        rows, columns = np.nonzero(mask)
        sides = np.ptp(columns) + 1, np.ptp(rows) + 1
        assert annotation['bbox'] == [columns.min(), rows.min(), *sides]
        if annotation['iscrowd']:
            assert annotation['segmentation']['size'] == size
        else:
            assert all(len(outline) >= 6 for outline in annotation['segmentation'])
    assert split == 'val' or any(annotation['iscrowd'] for annotation in coco.anns.values())
    names = {coco.cats[annotation['category_id']]['name'] for annotation in coco.anns.values()}
    assert len(names) >= 3 and names <= {kind.coco for kind in KINDS.values()}


def test_things_are_the_instances_and_stuff_is_around_them(mini: dict[str, Path]) -> None:
    coco = detection_dataset(CocoPanopticDataset, mini['coco'], PANOPTIC, 'train2017')
    instances = json.loads((mini['coco'] / 'annotations/instances_train2017.json').read_text())['annotations']
    assert len(coco) == NUM_TRAIN
    stuff = set()
    for sample in coco:
        own = [each for each in instances if each['image_id'] == sample['img_id'] and not each['iscrowd']]
        assert len(sample['gt_masks']) == len(sample['gt_bboxes_labels']) >= len(own)
        # Outlines are not exactly the pixels.
        areas = sample['gt_masks'].masks.sum(), sum(each['area'] for each in own)
        assert areas[0] == pytest.approx(areas[1], rel=0.15)
        for mask, label in zip(sample['gt_masks'].masks, sample['gt_bboxes_labels']):
            assert (sample['gt_seg_map'][mask > 0] == label).all()
        labels = np.unique(sample['gt_seg_map'])
        stuff |= {coco.metainfo['classes'][label] for label in labels if 80 <= label < 133}
        assert (sample['gt_seg_map'] < 133).mean() > 0.9
    assert {'sky-other-merged', 'grass-merged', 'tree-merged', 'house'} <= stuff
    document = json.loads((mini['coco'] / f'{PANOPTIC}.json').read_text())
    assert any(each['iscrowd'] for entry in document['annotations'] for each in entry['segments_info'])
    assert set(document) == {'info', 'licenses', 'images', 'annotations', 'categories'}


def test_polygons_follow_the_mask() -> None:
    y, x = np.mgrid[:90, :120]
    blob = (((x - 60) / 40) ** 2 + ((y - 40) / 25) ** 2 < 1) & ~((x > 55) & (x < 62))
    at_the_edge = (np.abs(x - 5) < 9) & (np.abs(y - 80) < 12)
    for mask, parts in ((blob, 2), (at_the_edge, 1)):
        outlines = polygons(mask)
        assert len(outlines) == parts
        decoded = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(outlines, *mask.shape))).astype(bool)
        assert (decoded & mask).sum() / (decoded | mask).sum() > 0.97
