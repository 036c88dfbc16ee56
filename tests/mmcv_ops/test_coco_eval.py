"""COCO's metrics by faster-coco-eval beside those of pycocotools."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask
from pycocotools.cocoeval import COCOeval

from tests.needs import needs

NUM_IMAGES, SIZE, CLASSES = 12, 220, ('bolt', 'nut', 'washer')


def masks_of(boxes: np.ndarray) -> np.ndarray:
    """Ellipses in boxes x1, y1, x2, y2: bool (N, SIZE, SIZE)."""
    rows, columns = np.mgrid[:SIZE, :SIZE] + 0.5
    left, top, right, bottom = (each[:, None, None] for each in boxes.T)
    across = (columns - (left + right) / 2) / ((right - left) / 2)
    return across**2 + ((rows - (top + bottom) / 2) / ((bottom - top) / 2)) ** 2 < 1


def objects(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes x1, y1, x2, y2 of small, medium and large objects, and their classes."""
    sizes = rng.choice([20, 60, 120], (number, 1)) * rng.uniform(0.8, 1.2, (number, 2))
    corners = rng.uniform(0, SIZE - sizes)
    return np.concatenate([corners, corners + sizes], axis=1), rng.integers(0, 3, number)


@needs('faster_coco_eval')
def test_the_numbers_are_those_of_pycocotools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmdet.evaluation.metrics import coco_metric

    rng, samples, annotations = np.random.default_rng(0), [], []
    for image in range(1, NUM_IMAGES + 1):
        boxes, labels = objects(rng, image % 5)  # also none
        for box, label, mask in zip(boxes, labels, masks_of(boxes)):
            runs = coco_mask.encode(np.asfortranarray(mask, np.uint8))
            entry = dict(id=len(annotations) + 1, image_id=image, category_id=int(label) + 1, area=float(mask.sum()))
            entry.update(bbox=[*box[:2], *(box[2:] - box[:2])], iscrowd=int(rng.random() < 0.15))
            annotations.append(entry | dict(segmentation=dict(runs, counts=runs['counts'].decode())))
        others, other_labels = objects(rng, 6)
        found = np.concatenate([boxes + rng.normal(0, 2, boxes.shape), boxes + rng.normal(0, 8, boxes.shape), others])
        instances = dict(
            bboxes=torch.from_numpy(found),
            labels=torch.from_numpy(np.concatenate([labels, labels, other_labels])),
            # Two decimals: some are the same.
            scores=torch.from_numpy(rng.uniform(size=len(found)).round(2)),
            masks=torch.from_numpy(masks_of(found)),
        )
        samples.append(dict(img_id=image, ori_shape=(SIZE, SIZE), pred_instances=instances))
    images = [dict(id=sample['img_id'], file_name='', width=SIZE, height=SIZE) for sample in samples]
    categories = [dict(id=index + 1, name=name) for index, name in enumerate(CLASSES)]
    truth = dict(images=images, annotations=annotations, categories=categories)
    (tmp_path / 'truth.json').write_text(json.dumps(truth))

    evaluations = []

    def metrics(evaluation: object) -> dict[str, float]:
        def kept(*args: object) -> object:
            evaluations.append(evaluation(*args))
            return evaluations[-1]

        monkeypatch.setattr(coco_metric, 'COCOeval', kept)
        metric = coco_metric.CocoMetric(str(tmp_path / 'truth.json'), ['bbox', 'segm', 'proposal'], classwise=True)
        metric.dataset_meta = dict(classes=CLASSES)
        metric.process({}, samples)
        return metric.evaluate(NUM_IMAGES)

    faster, expected = metrics(coco_metric.COCOeval), metrics(COCOeval)
    assert faster == expected and 0.1 < expected['coco/bbox_mAP'] < 0.9
    assert [type(each).__name__ for each in evaluations] == ['COCOeval_faster'] * 3 + ['COCOeval'] * 3
    # The metric rounds.
    for one, other in zip(evaluations[:3], evaluations[3:]):
        np.testing.assert_allclose(one.stats[:12], other.stats, rtol=0, atol=1e-12)
        np.testing.assert_allclose(one.eval['precision'], other.eval['precision'], rtol=0, atol=1e-12)
