"""Confusion matrices of pixels and boxes, and tools/analysis/confusion_matrix.py."""

import contextlib
import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from mmseg.evaluation import IoUMetric
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor

from bioattn_mm.analysis.confusion import (
    ConfusionHook,
    confused_pairs,
    count_boxes,
    count_pixels,
    measure_classes,
    normalize,
)
from bioattn_mm.errors import InputError
from bioattn_mm.run_config.classes import set_classes
from bioattn_mm.run_config.mini import make_mini

from ..own_folders import MASK_CLASSES, write_mask_folder
from ..tools.running import ROOT, InProcess, metrics_of_test

TOOL = 'analysis/confusion_matrix.py'
SEGMENTOR = str(ROOT / 'tests/tools/upernet_small.py')
DETECTOR = str(ROOT / 'tests/tools/mask_rcnn_small.py')
FOUR_IMAGES = ('--mini', '--cfg-options', 'test_dataloader.dataset.indices=4')


def test_pixels_by_hand() -> None:
    labels = torch.tensor([[0, 0, 1], [2, 255, 7]])
    predictions = torch.tensor([[0, 1, 1], [0, 1, 2]])
    expected = [
        [1, 1, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 0, 0],
        [0, 0, 1, 0],  # a label that is no class
    ]
    assert count_pixels(labels, predictions, 3, ignore_index=255).tolist() == expected


def test_pixels_give_the_metrics_of_mmseg() -> None:
    classes = tuple('abcdef')
    metric = IoUMetric()
    metric.dataset_meta = dict(classes=classes)
    counts = 0
    for _ in range(3):
        labels = torch.randint(0, 5, (40, 30))  # no label is the last class, which is predicted
        predictions = torch.where(torch.rand(40, 30) < 0.6, labels, torch.randint(0, 6, (40, 30)))
        labels[:4] = 255
        labels[4, :5] = 77
        counts = counts + count_pixels(labels, predictions, 6, 255)
        metric.process({}, [dict(pred_sem_seg=dict(data=predictions), gt_sem_seg=dict(data=labels))])
    expected = metric.compute_metrics(metric.results)
    rows = measure_classes(counts, classes)
    assert rows[-1]['IoU'] == 0 and np.isnan(rows[-1]['recall'])
    assert np.mean([row['IoU'] for row in rows]) == pytest.approx(expected['mIoU'], abs=0.006)
    assert np.nanmean([row['recall'] for row in rows]) == pytest.approx(expected['mAcc'], abs=0.006)
    right, truth = (sum(row[key] for row in rows) for key in ('right', 'truth'))
    assert 100 * right / truth == pytest.approx(expected['aAcc'], abs=0.006)


def instances(*boxes: tuple) -> InstanceData:
    """Boxes as (label, x1, y1, x2, y2), predicted ones with a score at the end."""
    values = torch.tensor(boxes, dtype=torch.float32) if boxes else torch.zeros(0, 6)
    data = InstanceData(bboxes=values[:, 1:5], labels=values[:, 0].long())
    if values.shape[1] == 6:
        data.scores = values[:, 5]
    return data


LEFT, RIGHT, FAR = (0, 0, 10, 10), (20, 0, 30, 10), (100, 100, 110, 110)
BOXES = {
    'right, and one that is not': (
        [(0, *LEFT), (1, *RIGHT)], [], [(0, *LEFT, 0.9)], {(0, 0): 1, (1, 2): 1},
    ),
    'taken for another class': ([(0, *LEFT)], [], [(1, *LEFT, 0.9)], {(0, 1): 1}),
    'the right class first, though its score is lower': (
        [(0, *LEFT)], [], [(1, *LEFT, 0.9), (0, 0, 0, 10, 8, 0.6)], {(0, 0): 1, (2, 1): 1},
    ),
    'one object, two boxes': ([(0, *LEFT)], [], [(0, *LEFT, 0.6), (0, *LEFT, 0.9)], {(0, 0): 1, (2, 0): 1}),
    'too low a score': ([(0, *LEFT)], [], [(0, *LEFT, 0.2)], {(0, 2): 1}),
    'too small an IoU': ([(0, *LEFT)], [], [(0, 0, 0, 10, 4, 0.9)], {(0, 2): 1, (2, 0): 1}),
    'on a crowd of its class': ([], [(0, 0, 0, 50, 50)], [(0, *LEFT, 0.9), (0, *RIGHT, 0.9)], {}),
    'on a crowd of another class': ([], [(0, 0, 0, 50, 50)], [(1, *LEFT, 0.9)], {(2, 1): 1}),
    'nothing there': ([], [], [(1, *FAR, 0.9)], {(2, 1): 1}),
    'nothing predicted': ([(1, *FAR)], [], [], {(1, 2): 1}),
    'neither': ([], [], [], {}),
}  # fmt: skip


@pytest.mark.parametrize(('truth', 'ignored', 'predicted', 'expected'), BOXES.values(), ids=BOXES)
def test_boxes_by_hand(truth: list, ignored: list, predicted: list, expected: dict) -> None:
    counts = count_boxes(*(instances(*boxes) for boxes in (truth, ignored, predicted)), 2, 0.5, 0.3)
    assert {place: value for place, value in np.ndenumerate(counts) if value} == expected


def random_boxes(number: int, around: Tensor | None = None) -> Tensor:
    """Boxes (number, 4) as x1, y1, x2, y2; near others if there are any."""
    corners = torch.rand(number, 2) * 80
    boxes = torch.cat([corners, corners + 5 + torch.rand(number, 2) * 30], dim=1)
    if around is not None and len(around):
        near = around[torch.randint(len(around), (number,))] + 3 * torch.rand(number, 4) - 1.5
        boxes = torch.where(torch.rand(number, 1) < 0.7, near, boxes)
    return boxes


def to_coco(data: InstanceData, image: int, **more: object) -> list[dict]:
    corners = data.bboxes.double()
    return [
        dict(
            bbox=[x1, y1, x2 - x1, y2 - y1], area=(x2 - x1) * (y2 - y1), category_id=int(data.labels[index]) + 1,
            image_id=image, **more, **({'score': float(data.scores[index])} if 'scores' in data else {}),
        )
        for index, (x1, y1, x2, y2) in enumerate(corners.tolist())
    ]  # fmt: skip


def test_boxes_give_precision_and_recall_of_coco() -> None:
    counts, truth, predictions = 0, [], []
    for image in range(1, 21):
        objects = InstanceData(bboxes=random_boxes(8), labels=torch.randint(0, 3, (8,)))
        crowds = InstanceData(bboxes=random_boxes(2) * 1.3, labels=torch.randint(0, 3, (2,)))
        boxes = random_boxes(30, torch.cat([objects.bboxes, crowds.bboxes]))
        predicted = InstanceData(bboxes=boxes, labels=torch.randint(0, 3, (30,)), scores=torch.rand(30))
        counts = counts + count_boxes(objects, crowds, predicted, 3, 0.5, 0.4)
        truth += to_coco(objects, image, iscrowd=0) + to_coco(crowds, image, iscrowd=1)
        predictions += to_coco(predicted[predicted.scores >= 0.4], image)

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = dict(
            images=[dict(id=image) for image in range(1, 21)],
            categories=[dict(id=number) for number in (1, 2, 3)],
            annotations=[dict(annotation, id=number) for number, annotation in enumerate(truth, 1)],
        )
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(predictions), 'bbox')
        evaluation.evaluate()
    right, wrong, objects = np.zeros(3, int), np.zeros(3, int), np.zeros(3, int)
    for result in evaluation.evalImgs:
        if result is not None and result['aRng'] == [0, 1e10]:
            label, counted = result['category_id'] - 1, result['dtIgnore'][0] == 0
            right[label] += (counted & (result['dtMatches'][0] > 0)).sum()
            wrong[label] += (counted & (result['dtMatches'][0] == 0)).sum()
            objects[label] += (np.asarray(result['gtIgnore']) == 0).sum()
    assert right.min() > 5 and wrong.min() > 5
    rows = measure_classes(counts, tuple('abc'))
    assert [row['right'] for row in rows] == right.tolist()
    assert [row['precision'] for row in rows] == pytest.approx((100 * right / (right + wrong)).tolist())
    assert [row['recall'] for row in rows] == pytest.approx((100 * right / objects).tolist())


def test_confused_pairs_and_shares() -> None:
    counts = np.array([[6, 3, 1], [4, 0, 0], [5, 0, 0]])
    pairs = confused_pairs(counts, ('a', 'b'))
    assert [(pair['truth'], pair['predicted'], pair['count']) for pair in pairs] == [('b', 'a', 4), ('a', 'b', 3)]
    assert (pairs[1]['percent_of_truth'], pairs[1]['percent_of_predicted']) == (30, 100)
    assert normalize(counts, 'truth')[0].tolist() == [60, 30, 10]
    assert normalize(counts, 'prediction')[:, 0].tolist() == [40, pytest.approx(80 / 3), pytest.approx(100 / 3)]
    assert normalize(counts, 'all').sum() == pytest.approx(100)


@pytest.fixture(scope='module')
def checkpoints(workplace: Path) -> Path:
    """Random weights of a segmentor, which predict many classes, and of a detector; and a segmentor of 3 classes."""
    for path in (SEGMENTOR, DETECTOR):
        config = make_mini(Config.fromfile(path))
        init_default_scope(config.default_scope)
        torch.manual_seed(4)
        model = MODELS.build(config.model)
        if path == SEGMENTOR:
            model.decode_head.conv_seg.weight.data.normal_()
        torch.save(dict(state_dict=model.state_dict()), workplace / f'{config.default_scope}.pth')
    meta = dict(dataset_meta=dict(classes=('bolt', 'nut', 'washer')))
    torch.save(dict(state_dict=dict(weight=torch.zeros(3)), meta=meta), workplace / 'own_classes.pth')
    return workplace


def read_csv(path: Path) -> list[dict]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_segmentation_as_test_py_measures_it(checkpoints: Path, tool: InProcess) -> None:
    printed = tool(checkpoints, TOOL, SEGMENTOR, 'mmseg.pth', '--out', 'pixels', *FOUR_IMAGES)
    document = json.loads((checkpoints / 'pixels/confusion_matrix.json').read_text())
    counts = np.array(document['counts'])
    assert counts.shape == (151, 151) and not counts[:, -1].any()
    # As many pixels as the files have.
    files = sorted((checkpoints / 'data/mini/ADEChallengeData2016/annotations/validation').glob('*.png'))[:4]
    labels = np.concatenate([np.asarray(Image.open(file)).ravel() for file in files])
    assert counts[:-1].sum(axis=1).tolist() == np.bincount(labels, minlength=151)[1:].tolist()

    tool(checkpoints, 'test.py', SEGMENTOR, 'mmseg.pth', '--work-dir', 'tested_matrix', *FOUR_IMAGES)
    expected = metrics_of_test(checkpoints / 'tested_matrix')
    for name in ('mIoU', 'aAcc', 'mAcc'):
        assert document['summary'][name] == pytest.approx(expected[name], abs=0.006)
    assert f'mIoU {document["summary"]["mIoU"]:.2f}' in printed

    rows = read_csv(checkpoints / 'pixels/confusion_matrix.csv')
    assert [row.pop('truth') for row in rows] == document['names']
    assert [[int(value) for value in row.values()] for row in rows] == counts.tolist()
    classes = read_csv(checkpoints / 'pixels/classes.csv')
    assert len(classes) == 150 and float(classes[2]['recall']) == document['classes'][2]['recall']
    pairs = read_csv(checkpoints / 'pixels/pairs.csv')
    assert [int(pair['count']) for pair in pairs[:2]] == sorted(counts[~np.eye(151, dtype=bool)])[:-3:-1]
    with Image.open(checkpoints / 'pixels/confusion_matrix.png') as image:
        # Large enough for the names of all classes that occur.
        assert image.width > 15 * (counts.any(axis=0) | counts.any(axis=1)).sum()
        assert np.asarray(image.convert('L')).std() > 10


def test_detection_with_chosen_classes(checkpoints: Path, tool: InProcess) -> None:
    args = ('--score-thr', 0, '--iou-thr', 0.1, '--classes', 'car', 'boat', '--normalize', 'none', '--top', 3)
    printed = tool(checkpoints, TOOL, DETECTOR, 'mmdet.pth', '--out', 'boxes', *args, *FOUR_IMAGES)
    document = json.loads((checkpoints / 'boxes/confusion_matrix.json').read_text())
    counts = np.array(document['counts'])
    annotations = json.loads((checkpoints / 'data/mini/coco/annotations/instances_val2017.json').read_text())
    images = sorted(image['id'] for image in annotations['images'])[:4]
    objects = [item for item in annotations['annotations'] if item['image_id'] in images and not item['iscrowd']]
    assert counts[:-1].sum() == len(objects) > 10
    assert counts[:, :-1].sum() == sum(row['predicted'] for row in document['classes']) > 0
    assert document['names'][-1] == '(background)' and counts[-1, -1] == 0
    for index, row in enumerate(document['classes']):
        assert row['missed'] == counts[index, -1] and row['false_alarms'] == counts[-1, index]
        assert 'IoU' not in row
    assert re.search(r'│ car +│', printed) and not re.search(r'│ kite +│ +\d', printed)


def test_own_data_with_classes_of_their_own(checkpoints: Path, tool: InProcess) -> None:
    data = write_mask_folder(checkpoints / 'own', range(5))
    config = make_mini(Config.fromfile(SEGMENTOR))
    set_classes(config, MASK_CLASSES)
    init_default_scope('mmseg')
    state_dict = MODELS.build(config.model).state_dict()
    torch.save(
        dict(state_dict=state_dict, meta=dict(dataset_meta=dict(classes=MASK_CLASSES))), checkpoints / 'own.pth'
    )
    tool(checkpoints, TOOL, SEGMENTOR, 'own.pth', '--val-data', 'own', '--mini', '--out', 'own_data')
    document = json.loads((checkpoints / 'own_data/confusion_matrix.json').read_text())
    assert document['names'] == [*MASK_CLASSES, '(no class)']
    labels = np.concatenate([np.asarray(Image.open(path)).ravel() for path in (data / 'masks').iterdir()])
    assert [row['truth'] for row in document['classes']] == np.bincount(labels)[:3].tolist()
    for path in (data / 'masks').iterdir():
        Image.fromarray(np.full_like(np.asarray(Image.open(path)), 255)).save(path)
    line = tool.error(checkpoints, TOOL, SEGMENTOR, 'own.pth', '--val-data', 'own', '--mini', '--out', 'unlabelled')
    assert line == 'error: there is nothing to count: the test images have no pixels that count'


def test_a_panoptic_model_without_boxes() -> None:
    sample = DetDataSample(gt_instances=InstanceData(labels=torch.zeros(1)))
    with pytest.raises(InputError, match=r'predicts no boxes.*set model.test_cfg.instance_on=True'):
        ConfusionHook(3).after_test_iter(None, 0, outputs=[sample])


REFUSED = {
    'a class that is none': (
        [SEGMENTOR, 'mmseg.pth', '--classes', 'sky', 'skye'],
        "--classes 'skye' is not a class of the test set: expected some of wall, building, sky",
    ),
    'a threshold': ([DETECTOR, 'mmdet.pth', '--iou-thr', '0'], '--iou-thr must be above 0 and at most 1, got 0'),
    'a model of other classes': (
        [SEGMENTOR, 'own_classes.pth'],
        r'own_classes.pth was trained on 3 classes \(bolt, nut, washer\), the test set of .*small.py has 150: '
        'name the data with --data, or the config in the work dir of that training',
    ),
    'a checkpoint of another model': ([SEGMENTOR, 'mmdet.pth'], 'mmdet.pth is not a checkpoint of this model'),
    'a checkpoint that is not there': ([SEGMENTOR, 'absent.pth'], 'checkpoint not found: absent.pth'),
}


@pytest.mark.parametrize(('args', 'message'), REFUSED.values(), ids=REFUSED)
def test_refuses_in_one_line(args: list[str], message: str, checkpoints: Path, tool: InProcess) -> None:
    line = tool.refused(checkpoints, TOOL, *args, '--out', 'refused', '--mini')
    assert re.match(f'error: {message}', line)
