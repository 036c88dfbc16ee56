"""Testing a checkpoint for an analysis: which metrics it gives."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from torch import nn

from bioattn_mm.analysis.evaluation import TrainedModel, choose_metric
from bioattn_mm.errors import InputError


def test_metrics_that_are_no_numbers_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of mmpretrain's `ConfusionMatrix`, and of its `SingleLabelMetric` of every class."""
    network = nn.Linear(1, 1)
    metrics = {'top1': np.float32(50), 'precision_classwise': [1.0, 2.0], 'confusion': torch.eye(2)}
    runner = SimpleNamespace(model=network, test=lambda: metrics)
    monkeypatch.setattr('bioattn_mm.analysis.evaluation.build_runner', lambda config: runner)
    model = TrainedModel(Config(), 'a.pth', network.state_dict())
    assert model.test(Config(dict(work_dir=str(tmp_path)))) == dict(top1=50)


def test_metric_of_a_whole_test() -> None:
    metrics = {'coco/bbox_mAP': 1.0, 'coco/bbox_mAP_50': 2.0}
    assert choose_metric(metrics) == 'coco/bbox_mAP' and choose_metric(metrics, 'coco/bbox_mAP_50')
    with pytest.raises(InputError, match="no metric 'mIoU': name one of coco/bbox_mAP, coco/bbox_mAP_50"):
        choose_metric(metrics, 'mIoU')
    with pytest.raises(InputError, match='the test has no metrics: the model predicts nothing'):
        choose_metric({})
