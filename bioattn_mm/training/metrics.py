"""Metrics of ImageNet's test sets."""

from collections import Counter
from pathlib import Path

import numpy as np
from mmengine.evaluator import BaseMetric
from mmpretrain.evaluation import Accuracy

from ..data.classification import mean_corruption_error
from ..registry import METRICS


@METRICS.register_module()
class SubsetAccuracy(Accuracy):
    """mmpretrain's `Accuracy` with predictions among the classes of the test set alone.

    `ImageNetFolders` has them. So the papers of ImageNet-A and -R define the accuracy on their 200 classes.
    """

    def process(self, data_batch: dict, data_samples: list[dict]) -> None:
        subset = self.dataset_meta['subset']
        restricted = []
        for sample in data_samples:
            scores = sample['pred_score']
            masked = scores.new_full(scores.shape, -1)
            masked[subset] = scores[subset]
            restricted.append(dict(sample, pred_score=masked))
        super().process(data_batch, restricted)


@METRICS.register_module()
class CorruptionError(BaseMetric):
    """mCE of ImageNet-C in percent of AlexNet's errors (`mean_corruption_error`), and the top-1 accuracies.

    An image's path says its corruption and severity: .../CORRUPTION/SEVERITY/CLASS/FILE. Reports the top-1 accuracy
    of each corruption, the mean over its severities, their mean as `top1`, and `mCE` if all of ImageNet-C is there.
    """

    default_prefix = 'imagenet_c'

    def process(self, data_batch: dict, data_samples: list[dict]) -> None:
        for sample in data_samples:
            corruption, severity = Path(sample['img_path']).parts[-4:-2]
            right = sample['pred_score'].argmax() == sample['gt_label']
            self.results.append((corruption, int(severity), bool(right)))

    def compute_metrics(self, results: list[tuple[str, int, bool]]) -> dict[str, float]:
        count = Counter((corruption, severity) for corruption, severity, _ in results)
        right = Counter((corruption, severity) for corruption, severity, right in results if right)
        top1 = {condition: 100 * right[condition] / count[condition] for condition in count}
        names = dict.fromkeys(corruption for corruption, _ in top1)
        means = {name: float(np.mean([top1[pair] for pair in top1 if pair[0] == name])) for name in names}
        error = mean_corruption_error(top1)
        return dict(**({} if error is None else dict(mCE=error)), top1=float(np.mean(list(top1.values()))), **means)
