"""The miniature ADE20K through mmseg and mmdet, its baseline, and the annotations of tools/convert_ade20k.py."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from mmdet.datasets import ADE20KInstanceDataset, ADE20KPanopticDataset
from mmseg.datasets import ADE20KDataset
from PIL import Image
from pycocotools import mask as coco_mask

from bioattn_mm.data.ade20k import INSTANCE_CATEGORIES, PANOPTIC_CATEGORIES, STUFF_IDS, THINGS, annotate
from bioattn_mm.data.class_names import ADE20K_CLASSES
from bioattn_mm.data.mini.ade20k import majority_baseline
from bioattn_mm.mmcv_ops.panoptic import rgb2id

from ..tools.running import InProcess
from .conftest import NUM_TRAIN, NUM_VAL, detection_dataset

WRITTEN = [f'ade20k_{kind}_{split}.json' for kind in ('instance', 'panoptic') for split in ('train', 'val')]


def test_class_names() -> None:
    # mmseg's names, one of which ends in a space.
    assert tuple(name.strip() for name in ADE20KDataset.METAINFO['classes']) == ADE20K_CLASSES
    kinds = ((INSTANCE_CATEGORIES, ADE20KInstanceDataset), (PANOPTIC_CATEGORIES, ADE20KPanopticDataset))
    for categories, dataset in kinds:
        assert tuple(category['name'] for category in categories) == dataset.METAINFO['classes']
        things = dataset.METAINFO.get('thing_classes', ())
        assert all(category['isthing'] == (category['name'] in things) for category in categories if things)
    # The site of ADE20K has a file of the classes with instances: 1 is the 8th of 150, ..., 100 the 150th.
    numbers = [category['id'] + 1 for category in INSTANCE_CATEGORIES]
    assert (numbers[:5], numbers[-5:]) == ([8, 9, 11, 13, 15], [145, 147, 148, 149, 150])


def load(root: Path, split: str) -> ADE20KDataset:
    return ADE20KDataset(
        data_root=str(root),
        data_prefix={'img_path': f'images/{split}', 'seg_map_path': f'annotations/{split}'},
        pipeline=[{'type': 'LoadImageFromFile'}, {'type': 'mmseg.LoadAnnotations', 'reduce_zero_label': True}],
    )


def test_loads_through_mmseg(mini: dict[str, Path]) -> None:
    for split, number in (('training', NUM_TRAIN), ('validation', NUM_VAL)):
        dataset = load(mini['ade20k'], split)
        assert len(dataset) == number
        for sample in dataset:
            labels = sample['gt_seg_map']
            assert labels.shape == sample['img'].shape[:2] and min(labels.shape) >= 128
            assert ADE20K_CLASSES.index('sky') in labels and set(np.unique(labels)) <= {*range(150), 255}
    images = [Image.open(path) for path in (mini['ade20k'] / 'annotations').glob('*/*.png')]
    assert {image.mode for image in images} == {'L'}
    assert any((np.array(image) == 0).any() for image in images)  # pixels without a label


def test_baseline_is_the_most_frequent_class_everywhere(mini: dict[str, Path]) -> None:
    name, miou = majority_baseline(mini['ade20k'])
    labels = np.concatenate([sample['gt_seg_map'].ravel() for sample in load(mini['ade20k'], 'validation')])
    classes, counts = np.unique(labels[labels != 255], return_counts=True)
    assert name == ADE20K_CLASSES[classes[counts.argmax()]]
    assert miou == pytest.approx(100 * counts.max() / counts.sum() / len(classes))


def test_stuff_and_instances_are_those_of_the_label_map(mini: dict[str, Path]) -> None:
    """Stuff is where the label map has it; instances are the same in both files, and of the label map's class."""
    panoptic = detection_dataset(ADE20KPanopticDataset, mini['ade20k'], 'ade20k_panoptic_train', 'images/training')
    instances = detection_dataset(ADE20KInstanceDataset, mini['ade20k'], 'ade20k_instance_train', 'images/training')
    assert len(panoptic) == len(instances) == NUM_TRAIN
    number = 0
    for sample, other in zip(panoptic, instances):
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


def test_conversion_of_the_folder_that_the_site_has(mini: dict[str, Path], tmp_path: Path, tool: InProcess) -> None:
    def unpacked(name: str) -> Path:
        return shutil.copytree(mini['ade20k'], tmp_path / name, ignore=shutil.ignore_patterns('ade20k_*'))

    root = unpacked('ADEChallengeData2016')
    printed = tool(tmp_path, 'convert_ade20k.py', root)
    assert all(name in printed for name in WRITTEN)
    for path in sorted(path for path in mini['ade20k'].rglob('ade20k_*') if path.is_file()):
        assert (root / path.relative_to(mini['ade20k'])).read_bytes() == path.read_bytes()
    assert 'is there already' in tool.refused(tmp_path, 'convert_ade20k.py', root)

    damaged = unpacked('damaged')
    (damaged / 'annotations_instance/validation/ADE_val_00000002.png').write_bytes(b'no image')
    line = tool.error(tmp_path, 'convert_ade20k.py', damaged)
    assert 'is missing or damaged' in line and line.endswith('download and unpack it again')
    assert not (damaged / 'ade20k_panoptic_val').exists() and not (damaged / 'ade20k_panoptic_val.json').exists()
    shutil.rmtree((incomplete := unpacked('incomplete')) / 'annotations_instance')
    assert 'annotations_instance.tar and unpack it there' in tool.refused(tmp_path, 'convert_ade20k.py', incomplete)
