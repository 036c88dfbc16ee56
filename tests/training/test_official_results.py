"""Boxes and masks in COCO's format of results: pycocotools alone gives the metrics that a test here prints."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.datasets import CocoDataset
from mmdet.evaluation import CocoMetric
from pycocotools.coco import COCO

ROOT = Path(__file__).parents[2]


def test_pycocotools_gives_the_same_precision(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    annotations = workplace / 'data/mini/coco/annotations/instances_val2017.json'
    metric = CocoMetric(str(annotations), metric=['bbox', 'segm'], outfile_prefix=str(tmp_path / 'results'))
    metric.dataset_meta = CocoDataset.METAINFO
    truth, rng = COCO(str(annotations)), np.random.default_rng(0)
    labels = {category: label for label, category in enumerate(truth.getCatIds(CocoDataset.METAINFO['classes']))}
    for image in truth.dataset['images']:
        # Objects as they are annotated, but for some that are missed or taken for another class, all a bit displaced.
        found = [each for each in truth.imgToAnns[image['id']] if rng.random() < 0.8]
        shifts = rng.integers(-4, 5, (len(found), 2))
        boxes = [[*each['bbox'][:2], *np.add(each['bbox'][:2], each['bbox'][2:])] for each in found]
        masks = [np.roll(truth.annToMask(each), shift, (1, 0)) for each, shift in zip(found, shifts)]
        predicted = dict(
            bboxes=torch.tensor(np.reshape(boxes, (-1, 4)) + np.tile(shifts, 2)),
            labels=torch.tensor([labels[each['category_id']] * (rng.random() < 0.9) for each in found]),
            scores=torch.tensor(rng.random(len(found))),
            masks=torch.tensor(np.reshape(masks, (-1, image['height'], image['width'])).astype(bool)),
        )
        sample = dict(img_id=image['id'], ori_shape=(image['height'], image['width']), pred_instances=predicted)
        metric.process({}, [sample])
    ours = metric.evaluate(len(truth.dataset['images']))
    for kind in ('bbox', 'segm'):
        capsys.readouterr()
        monkeypatch.setattr(
            sys, 'argv', ['official_evaluation.py', str(annotations), str(tmp_path / f'results.{kind}.json')]
        )
        runpy.run_path(str(ROOT / 'benchmarks/official_evaluation.py'), run_name='__main__')
        alone = json.loads(capsys.readouterr().out)
        assert alone.keys() == {f'{kind}_mAP', f'{kind}_mAP_50'} and 5 < alone[f'{kind}_mAP'] < 95
        for name, value in alone.items():  # mmdet rounds to a tenth of a point
            assert abs(value - 100 * ours[f'coco/{name}']) < 0.051
