"""COCO's metrics by faster-coco-eval beside those of pycocotools."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.conftest import ROOT
from tests.needs import needs
from tests.own_folders import coco

SEEDS = range(12)


@needs('faster_coco_eval')
@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_the_numbers_are_those_of_pycocotools(kind: str, tmp_path: Path) -> None:
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
    files = [tmp_path / 'truth.json', tmp_path / f'results.{kind}.json']
    for file, content in zip(files, (truth.dataset, found)):
        file.write_text(json.dumps(content))

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
    # The script imports nothing of this package.
    official = runpy.run_path(str(ROOT / 'benchmarks/official_evaluation.py'))['average_precision']
    precision, at_50 = official(*map(str, files)).values()
    assert (precision, at_50) == pytest.approx((100 * expected[0], 100 * expected[1]))
