"""COCO's metrics by faster-coco-eval beside those of pycocotools."""

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.needs import needs
from tests.own_folders import coco

SEEDS = range(12)


@needs('faster_coco_eval')
@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_the_numbers_are_those_of_pycocotools(kind: str) -> None:
    from faster_coco_eval import COCOeval_faster
    from mmdet.evaluation.metrics import coco_metric

    rng, truth, found = np.random.default_rng(0), COCO(), []
    truth.dataset = coco(SEEDS, [''] * len(SEEDS))
    for each in truth.dataset['annotations']:
        for deviation in (2, 8, 40):
            shift = rng.normal(0, deviation, 2)
            polygon = np.reshape(each['segmentation'], (-1, 2)) + shift
            box = np.add(each['bbox'], [*shift, 0, 0]).tolist()
            score = round(rng.uniform(), 2)  # some are the same
            found.append(dict(each, bbox=box, segmentation=[polygon.ravel().tolist()], score=score))
        # Small, medium and large ones.
        each.update(area=float(rng.choice([500, 5000, 50_000])), iscrowd=int(rng.random() < 0.15))
    del truth.dataset['annotations'][:2]  # of the first image
    truth.createIndex()

    def stats(evaluation: type) -> np.ndarray:
        by = evaluation(truth, truth.loadRes(found), kind)
        by.evaluate()
        by.accumulate()
        by.summarize()
        return by.stats[:12]

    assert coco_metric.COCOeval.func is COCOeval_faster
    expected = stats(COCOeval)
    np.testing.assert_allclose(stats(coco_metric.COCOeval), expected, rtol=0, atol=1e-12)
    assert ((expected > 0) & (expected < 0.9)).all()
