"""Panoptic quality of cases worked out by hand, and what is drawn."""

import json
import pickle
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np
import panopticapi
import pytest
import torch
from mmdet.datasets import CocoPanopticDataset
from mmdet.evaluation.metrics import coco_panoptic_metric
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmdet.visualization import DetLocalVisualizer
from mmengine.structures import InstanceData, PixelData

from bioattn_mm.data.mini.coco import PANOPTIC_CATEGORIES
from bioattn_mm.data.panoptic import PanopticMap
from bioattn_mm.mmcv_ops.panoptic import PQStat, id2rgb, rgb2id
from bioattn_mm.mmcv_ops.stand_ins import STAND_INS
from bioattn_mm.training.detection import CocoPanopticMetric, DetVisualizer, PanopticVisualizer

CLASSES = CocoPanopticDataset.METAINFO['classes']
IDS = {category['name']: category['id'] for category in PANOPTIC_CATEGORIES}
SKY, CAR, PERSON, DOG = 'sky-other-merged', 'car', 'person', 'dog'
VOID = len(CLASSES)

# Segments of 4 x 10 pixels. In the ground truth, the persons are a crowd, and 4 pixels lower right are unlabelled.
TRUE = [
    [(SKY, np.s_[:2]), (CAR, np.s_[2:, :4]), (CAR, np.s_[2:, 4:6]), (PERSON, np.s_[2:, 6:8])],
    [(CAR, np.s_[0, :8])],
]
PREDICTED = [
    [
        (SKY, np.s_[0]),  # with the next, 15 of 20 pixels: IoU 0.75
        (SKY, np.s_[1, :5]),
        (CAR, np.s_[1, 5:]),  # no car there
        (CAR, np.s_[2:, :5]),  # 8 pixels of the first, 2 of the second: IoU 8 / 10 with the first
        (PERSON, np.s_[2:, 6:8]),  # in a crowd: does not count
        (DOG, np.s_[2:, 8:]),  # where nothing is labelled: does not count
    ],
    [(CAR, np.s_[0, :4])],  # IoU 0.5: matches only above that
]


def test_panoptic_quality_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two images as mmengine collects them from processes: pickled, then all in the first process."""
    images, entries, results, texts = [], [], [], []
    for index, segments in enumerate(TRUE):
        panoptic = PanopticMap((4, 10))
        for name, where in segments:
            mask = np.zeros((4, 10), bool)
            mask[where] = True
            panoptic.add(mask, IDS[name], crowd=name == PERSON)
        panoptic.image().save(tmp_path / f'{index}.png')
        images.append(dict(id=index, file_name=f'{index}.jpg', height=4, width=10))
        entries.append(dict(image_id=index, file_name=f'{index}.png', segments_info=panoptic.segments()))
    content = dict(images=images, annotations=entries, categories=PANOPTIC_CATEGORIES)
    (tmp_path / 'panoptic.json').write_text(json.dumps(content))
    for index, segments in enumerate(PREDICTED):
        # As Mask2Former gives it: class + 1000 times the number of the object.
        predicted = torch.full((1, 4, 10), VOID, dtype=torch.int32)
        for instance, (name, where) in enumerate(segments, start=1):
            predicted[0][where] = CLASSES.index(name) + 1000 * instance * (name != SKY)
        metric = CocoPanopticMetric(str(tmp_path / 'panoptic.json'), str(tmp_path), classwise=True)
        metric.dataset_meta, given = CocoPanopticDataset.METAINFO, predicted.clone()
        sample = dict(img_id=index, img_path=f'{index}.jpg', ori_shape=(4, 10), pred_panoptic_seg=dict(sem_seg=given))
        metric.process({}, [sample])
        assert (given == predicted).all()  # what is drawn after it must be what was predicted
        results += pickle.loads(pickle.dumps(metric.results))
    metric.results = results
    monkeypatch.setattr(coco_panoptic_metric, 'print_log', lambda text, logger: texts.append(text))
    found = metric.evaluate(2)
    # Cars: one match, of IoU 0.8, two other predictions, two other objects. Sky: one match. Others do not count.
    things, stuff = (0.8 / 3, 0.8, 1 / 3), (0.75, 0.75, 1)
    for suffix, values in (('_th', things), ('_st', stuff), ('', np.mean([things, stuff], 0))):
        for name, value in zip(('PQ', 'SQ', 'RQ'), values):
            assert found[f'coco_panoptic/{name}{suffix}'] == pytest.approx(100 * value)
    cells = [cell.strip() for cell in texts[1].replace('\n', '|').split('|')]
    # Each class with its own quality.
    assert cells[cells.index(CAR) + 1] == f'{100 * things[0]:.3f}'
    assert cells[cells.index(SKY) + 1] == '75.000' and cells[cells.index(DOG) + 1] == '0.000'


def test_what_stands_in_for_panopticapi() -> None:
    """Where it is not installed: an installed package takes precedence."""
    assert panopticapi.__spec__.loader in STAND_INS, 'panopticapi is installed: the rest is tested with it'
    assert all(sys.meta_path.index(PathFinder) < sys.meta_path.index(stand_in) for stand_in in STAND_INS)
    ids = np.array([[0, 255, 256], [65_536, 70_001, 2**24 - 1]], np.int32)
    colours = id2rgb(ids)
    assert colours.dtype == np.uint8 and colours[0, 2].tolist() == [0, 1, 0]
    assert (rgb2id(colours) == ids).all()
    assert id2rgb(70_001) == colours[1, 1].tolist() and rgb2id(colours[1, 1]) == 70_001
    means, classes = PQStat().pq_average({7: dict(isthing=0)}, None)
    assert means['n'] == 0 and np.isnan(means['pq']) and classes[7]['pq'] == 0


def test_ground_truth_and_prediction_are_drawn_as_segments() -> None:
    """Beside each other, each in its class's colour, unlabelled pixels as they are; boxes and masks are not drawn."""
    visualizer = PanopticVisualizer(alpha=1.0)
    visualizer.dataset_meta = CocoPanopticDataset.METAINFO
    sky, car, dog = (CLASSES.index(name) for name in (SKY, CAR, DOG))
    labels, mask = np.full((1, 80, 120), 255), np.zeros((1, 80, 120), np.uint8)
    labels[:, :40], mask[:, 50:, :60] = sky, 1
    box, whole = torch.tensor([[0.0, 50, 60, 80]]), torch.tensor([[0.0, 0, 120, 80]])
    drawn = DetDataSample(
        gt_sem_seg=PixelData(sem_seg=torch.from_numpy(labels)),
        gt_instances=InstanceData(bboxes=box, labels=torch.tensor([car]), masks=BitmapMasks(mask, 80, 120)),
        pred_instances=InstanceData(bboxes=whole, labels=torch.tensor([dog]), scores=torch.ones(1)),
        pred_panoptic_seg=PixelData(sem_seg=torch.where(torch.from_numpy(mask) > 0, dog + 1000, VOID)),
    )
    visualizer.add_datasample('both', np.full((80, 120, 3), 99, np.uint8), drawn)
    truth, predicted = np.split(visualizer.get_image(), 2, axis=1)
    palette = CocoPanopticDataset.METAINFO['palette']
    found = [tuple(pixel) for pixel in (truth[5, 5], truth[75, 5], predicted[75, 5], truth[75, 115])]
    assert found == [tuple(palette[sky]), tuple(palette[car]), tuple(palette[dog]), (99, 99, 99)]
    assert (predicted[:40] == 99).all()

    # An image without segments is drawn as it is.
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    nothing = DetDataSample(pred_panoptic_seg=PixelData(sem_seg=torch.full((1, 20, 30), VOID)))
    visualizer.add_datasample('nothing', image, nothing, draw_gt=False)
    assert (visualizer.get_image() == image).all()


def test_masks_are_drawn_as_mmengine_draws_them() -> None:
    draw = np.random.default_rng(0)
    image = draw.integers(0, 256, (37, 61, 3), dtype=np.uint8)
    masks = np.zeros((4, 37, 61), bool)
    masks[0, 5:20, 3:50], masks[1, 15:37, 40:61], masks[2] = True, draw.random((22, 21)) < 0.5, False
    masks[3, 36, 0] = True
    colors = [(255, 0, 3), (20, 200, 90), (1, 2, 3), (0, 0, 255)]
    for alphas in (0.5, 0.8, [0.1, 0.9, 0.5, 1.0]):
        drawn = []
        for kind in (DetLocalVisualizer, DetVisualizer):
            visualizer = kind()
            visualizer.set_image(image)
            visualizer.draw_binary_masks(masks, colors, alphas)
            drawn.append(visualizer.get_image().astype(int))
        assert np.abs(drawn[0] - drawn[1]).max() <= 1
        assert (drawn[1] != image).any()
