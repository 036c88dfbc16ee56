"""Panoptic and instance annotations: those that are drawn, and those that tools/convert_ade20k.py makes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from mmdet.datasets import ADE20KInstanceDataset, ADE20KPanopticDataset, CocoDataset, CocoPanopticDataset
from mmengine.registry import init_default_scope
from PIL import Image
from pycocotools import mask as coco_mask

from bioattn_mm.data.ade20k import INSTANCE_CATEGORIES, PANOPTIC_CATEGORIES, STUFF_IDS, THINGS, annotate
from bioattn_mm.data.checks import BadDataError
from bioattn_mm.data.class_names import ADE20K_CLASSES
from bioattn_mm.data.mini.coco import PANOPTIC_CATEGORIES as COCO_PANOPTIC
from bioattn_mm.mmcv_ops.panoptic import rgb2id

from ..tools.running import InProcess
from .conftest import NUM_TRAIN

WRITTEN = [f'ade20k_{kind}_{split}.json' for kind in ('instance', 'panoptic') for split in ('train', 'val')]


def test_categories_are_mmdet_s() -> None:
    for categories, dataset in (
        (INSTANCE_CATEGORIES, ADE20KInstanceDataset),
        (PANOPTIC_CATEGORIES, ADE20KPanopticDataset),
        (COCO_PANOPTIC, CocoPanopticDataset),
    ):
        assert tuple(category['name'] for category in categories) == dataset.METAINFO['classes']
        things = dataset.METAINFO.get('thing_classes', ())
        assert all(category['isthing'] == (category['name'] in things) for category in categories if things)
    # As the file of the site that says which classes have instances: 1 is the 8th of 150, ..., 100 the 150th.
    numbers = [category['id'] + 1 for category in INSTANCE_CATEGORIES]
    assert (numbers[:5], numbers[-5:]) == ([8, 9, 11, 13, 15], [145, 147, 148, 149, 150])
    assert (len(COCO_PANOPTIC), COCO_PANOPTIC[80]['id'], COCO_PANOPTIC[-1]['id']) == (133, 92, 200)
    assert sum(category['id'] for category in COCO_PANOPTIC) == 11963


def dataset_of(kind: type, root: Path, annotations: str, images: str) -> CocoDataset:
    init_default_scope('mmdet')
    load, prefix = dict(type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True, with_mask=True), dict(img=images)
    if 'Panoptic' in kind.__name__:
        load, prefix = dict(type='bioattn_mm.CheckedLoadPanopticAnnotations'), dict(prefix, seg=annotations)
    pipeline = [dict(type='LoadImageFromFile'), load]
    return kind(data_root=str(root), ann_file=f'{annotations}.json', data_prefix=prefix, pipeline=pipeline)


@pytest.fixture
def coco(mini: dict[str, Path]) -> CocoPanopticDataset:
    return dataset_of(CocoPanopticDataset, mini['coco'], 'annotations/panoptic_train2017', 'train2017')


@pytest.fixture
def ade20k(mini: dict[str, Path]) -> ADE20KPanopticDataset:
    return dataset_of(ADE20KPanopticDataset, mini['ade20k'], 'ade20k_panoptic_train', 'images/training')


def test_coco_through_mmdet(mini: dict[str, Path], coco: CocoPanopticDataset) -> None:
    """Things are the objects of the instance annotations, crowds are no instances, and stuff is all around them."""
    instances = json.loads((mini['coco'] / 'annotations/instances_train2017.json').read_text())['annotations']
    assert len(coco) == NUM_TRAIN
    stuff = set()
    for sample in coco:
        own = [each for each in instances if each['image_id'] == sample['img_id'] and not each['iscrowd']]
        assert len(sample['gt_masks']) == len(sample['gt_bboxes_labels']) >= len(own)
        areas = sorted(mask.sum() for mask in sample['gt_masks'].masks)
        # Outlines are not exactly the pixels.
        assert sum(areas) == pytest.approx(sum(each['area'] for each in own), rel=0.15)
        for mask, label in zip(sample['gt_masks'].masks, sample['gt_bboxes_labels']):
            assert (sample['gt_seg_map'][mask > 0] == label).all()
        labels = np.unique(sample['gt_seg_map'])
        stuff |= {coco.metainfo['classes'][label] for label in labels if 80 <= label < 133}
        assert (sample['gt_seg_map'] < 133).mean() > 0.9
    assert {'sky-other-merged', 'grass-merged', 'tree-merged', 'house'} <= stuff
    document = json.loads((mini['coco'] / 'annotations/panoptic_train2017.json').read_text())
    assert any(each['iscrowd'] for entry in document['annotations'] for each in entry['segments_info'])
    assert set(document) == {'info', 'licenses', 'images', 'annotations', 'categories'}


def test_ade20k_through_mmdet(mini: dict[str, Path], ade20k: ADE20KPanopticDataset) -> None:
    """Stuff is where the label map has it; instances are the same in both files, and of the label map's class."""
    instances = dataset_of(ADE20KInstanceDataset, mini['ade20k'], 'ade20k_instance_train', 'images/training')
    assert len(ade20k) == len(instances) == NUM_TRAIN
    number = 0
    for sample, other in zip(ade20k, instances):
        path = mini['ade20k'] / 'annotations/training' / f'{Path(sample["img_path"]).stem}.png'
        label_map = np.asarray(Image.open(path))
        for value, category_id in STUFF_IDS.items():
            assert ((sample['gt_seg_map'] == category_id) == (label_map == value)).all()
        masks, labels = sample['gt_masks'].masks, sample['gt_bboxes_labels']
        assert (masks == other['gt_masks'].masks).all() and (labels == other['gt_bboxes_labels']).all()
        for mask, label in zip(masks, labels):
            assert (label_map[mask > 0] == ADE20K_CLASSES.index(THINGS[label]) + 1).all()
        number += len(masks)
    assert number > NUM_TRAIN


def test_an_annotation_by_hand() -> None:
    labels = np.array([[3, 3, 3, 3], [21, 21, 21, 0], [21, 21, 0, 0]], np.uint8)  # sky, car
    instances = np.zeros((3, 4, 3), np.uint8)
    instances[1, :2, :2] = THINGS.index('car') + 1, 4
    (annotation,), panoptic = annotate(labels, instances)
    assert (coco_mask.decode(annotation.pop('segmentation')) == (instances[..., 1] == 4)).all()
    assert annotation == dict(category_id=20, iscrowd=0, bbox=[0, 1, 2, 1], area=2)
    sky, car = panoptic.segments()
    assert (sky['category_id'], sky['bbox'], sky['area']) == (102, [0, 0, 4, 1], 4)
    assert (car['category_id'], car['bbox'], car['area']) == (8, [0, 1, 2, 1], 2)
    # A car that is of no instance is unlabelled.
    expected = [[sky['id']] * 4, [car['id'], car['id'], 0, 0], [0] * 4]
    assert panoptic.ids.tolist() == rgb2id(np.asarray(panoptic.image())).tolist() == expected
    instances[0, 0, :2] = 1, 4
    with pytest.raises(ValueError, match=r'an instance of the classes \[1, 9\]'):
        annotate(labels, instances)


def test_the_tool(mini: dict[str, Path], tmp_path: Path, tool: InProcess) -> None:
    """From the folder as the site has it, the files that mmdet reads; and nothing over what is there."""
    root = tmp_path / 'ADEChallengeData2016'
    shutil.copytree(mini['ade20k'], root, ignore=shutil.ignore_patterns('ade20k_*'))
    printed = tool(tmp_path, 'convert_ade20k.py', root)
    assert all(name in printed for name in WRITTEN)
    for path in sorted(path for path in mini['ade20k'].rglob('ade20k_*') if path.is_file()):
        assert (root / path.relative_to(mini['ade20k'])).read_bytes() == path.read_bytes()
    assert 'is there already' in tool.refused(tmp_path, 'convert_ade20k.py', root)

    for path in root.glob('ade20k_*'):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (root / 'annotations_instance/validation/ADE_val_00000002.png').write_bytes(b'no image')
    line = tool.error(tmp_path, 'convert_ade20k.py', root)
    assert 'is missing or damaged' in line and line.endswith('download and unpack it again')
    assert not (root / 'ade20k_panoptic_val').exists() and not (root / 'ade20k_panoptic_val.json').exists()
    shutil.rmtree(root / 'annotations_instance')
    for path in root.glob('ade20k_*'):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert 'annotations_instance.tar and unpack it there' in tool.refused(tmp_path, 'convert_ade20k.py', root)


def test_a_bad_panoptic_map_is_named(mini: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(mini['coco'], tmp_path / 'coco')
    folder = tmp_path / 'coco/annotations/panoptic_train2017'
    dataset = dataset_of(CocoPanopticDataset, tmp_path / 'coco', 'annotations/panoptic_train2017', 'train2017')
    (folder / '000000000001.png').unlink()
    (folder / '000000000002.png').write_bytes(b'no image')
    Image.new('RGB', (7, 5)).save(folder / '000000000003.png')
    with Image.open(folder / '000000000004.png') as image:
        Image.new('RGB', image.size).save(folder / '000000000004.png')
    reasons = ('not found', 'cannot use the', r'it is of shape \(5, 7\)', 'it has no pixel of the segment')
    for index, reason in enumerate(reasons):
        with pytest.raises(BadDataError, match=f'00000{index + 1}.png.*{reason}|{reason}.*00000{index + 1}.png'):
            dataset[index]
