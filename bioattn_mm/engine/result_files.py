"""The detections of a test in the formats of `tools/predict.py`."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from mmdet.structures.mask import encode_mask_results
from mmengine.evaluator import BaseMetric

from ..registry import METRICS
from ..runtime.results import Files
from ..runtime.tasks import Detections


@METRICS.register_module()
class ResultFiles(BaseMetric):
    """Writes the detections of a test, all of them with their scores, when it ends; it computes no metric.

    Args:
        out_dir: The folder.
        formats: Of `runtime.formats.FORMATS`.
    """

    def __init__(self, out_dir: str, formats: Sequence[str]) -> None:
        super().__init__(collect_device='cpu')
        self.out_dir, self.formats = out_dir, formats

    def process(self, data_batch: dict, data_samples: list[dict]) -> None:
        for sample in data_samples:
            found = sample['pred_instances']
            masks = found.get('masks')
            if isinstance(masks, torch.Tensor):
                masks = encode_mask_results(masks.cpu().numpy())
            arrays = (found[key].cpu().numpy() for key in ('bboxes', 'scores', 'labels'))
            self.results.append((sample['img_path'], sample['ori_shape'][:2], Detections(*arrays, masks)))

    def compute_metrics(self, results: list[tuple[str, tuple[int, int], Detections]]) -> dict[str, float]:
        palette = self.dataset_meta.get('palette') or [(0, 0, 0)] * len(self.dataset_meta['classes'])
        model = SimpleNamespace(task='detection', classes=self.dataset_meta['classes'], palette=palette)
        files = Files(Path(self.out_dir), model, formats=self.formats, save_conf=True)
        for result in results:
            files.add_detected(*result)
        files.write()
        return {}
