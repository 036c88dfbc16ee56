"""COCO's metrics by faster-coco-eval beside those of pycocotools."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask
from pycocotools.cocoeval import COCOeval

from bioattn_mm.data.formats.coco import Annotation, Category, CocoFile, ImageEntry
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

    rng = np.random.default_rng(0)
    content = CocoFile('', [], [], [Category(index + 1, name) for index, name in enumerate(CLASSES)])
    samples = []
    for image in range(1, NUM_IMAGES + 1):
        content.images.append(ImageEntry(image, f'{image}.jpg', SIZE, SIZE))
        boxes, labels = objects(rng, image % 5)  # also none
        for box, label, mask in zip(boxes, labels, masks_of(boxes)):
            runs = coco_mask.encode(np.asfortranarray(mask, np.uint8))
            box = (*box[:2].tolist(), *(box[2:] - box[:2]).tolist())
            entry = Annotation(image, int(label) + 1, box, len(content.annotations) + 1, float(mask.sum()))
            entry.iscrowd = int(rng.random() < 0.15)
            segmentation = dict(size=[SIZE, SIZE], counts=runs['counts'].decode())
            entry.segmentation = msgspec.Raw(msgspec.json.encode(segmentation))
            content.annotations.append(entry)
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
    content.write(tmp_path / 'truth.json')

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
