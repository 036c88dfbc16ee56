"""The files of `tools/predict.py` for models in PyTorch: what data samples hold."""

import numpy as np
import torch
from mmdet.structures import INSTANCE_OFFSET
from mmengine.structures import BaseDataElement, PixelData

from ..datasets.panoptic import PanopticMap
from ..runtime import results
from ..runtime.drawing import resized_labels
from ..runtime.tasks import Detections
from .predictor import Prediction
from .rasters import Raster


class Results(results.Files):
    """The results of a run of a `Predictor`, in a folder.

    Those of `bioattn_mm.runtime.results.Results`, and of panoptic models:

    - `panoptic/NAME.png`, of videos `panoptic/NAME/FRAME.png`: the ID of the segment of every pixel, R + 256 G +
      256^2 B; 0 for pixels of none and of classes that were left out.
    - `predictions.json`: COCO's panoptic format, with the index of the class plus 1 as category id.

    Arguments as there.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self.predictor.task == 'panoptic':
            num_things = self.predictor.config.model.panoptic_fusion_head.num_things_classes
            for index, category in enumerate(self.categories):
                category['isthing'] = int(index < num_things)

    def add(self, prediction: Prediction, name: str, entry: dict) -> np.ndarray:
        sample = prediction.sample.cpu()
        if self.predictor.task == 'detection':
            sample.pred_instances = self._keep(sample)
            self.add_detections(name, entry, detections_of(sample))
        elif self.predictor.task == 'panoptic':
            segments = sample.pred_panoptic_seg.sem_seg
            segments[~torch.isin(segments % INSTANCE_OFFSET, torch.tensor(self.kept))] = len(self.categories)
            panoptic = panoptic_map(segments[0].numpy(), len(self.categories))
            file_name = f'panoptic/{name}.png'
            results.write_png(self.path(file_name), panoptic.image())
            self.annotations.append(
                dict(image_id=entry['id'], file_name=file_name, segments_info=panoptic.segments())
            )
        elif self.predictor.task == 'classification':
            sample.set_pred_score(self.add_scores(entry, sample.pred_score.numpy()))
        else:
            labels = sample.pred_sem_seg.data[0].numpy()
            if isinstance(prediction.image, Raster):
                entry['label_map'] = f'labels/{name}.tif'
                path = self.path(entry['label_map'])
                prediction.image.write_labels(path, labels, self.relabel, self.predictor.palette)
                labels = resized_labels(labels, prediction.image.reduced.shape[:2])
            else:
                self.write_labels(name, entry, self.relabel(labels))
            sample.pred_sem_seg = PixelData(data=torch.from_numpy(self.relabel(labels))[None])
        # What is below the threshold is left out already.
        return self.predictor.draw(prediction.image, sample, score_thr=-1.0)

    def _keep(self, sample: BaseDataElement) -> BaseDataElement:
        """The detections of the kept classes whose score is high enough."""
        instances = sample.pred_instances
        return instances[(instances.scores >= self.score_thr) & torch.isin(instances.labels, torch.tensor(self.kept))]


def detections_of(sample: BaseDataElement) -> Detections:
    """The detections of mmdet's data sample as NumPy arrays, masks maybe as run lengths."""
    instances = sample.pred_instances.numpy()
    masks = instances.get('masks')
    return Detections(instances.bboxes, instances.scores, instances.labels, masks)


def panoptic_map(segments: np.ndarray, num_classes: int) -> PanopticMap:
    """The segments of an image in COCO's form, with the index of the class plus 1 as category id.

    Args:
        segments: (H, W) int, class + `INSTANCE_OFFSET` * number of the object; `num_classes` is no segment.
        num_classes: Number of classes.
    """
    panoptic = PanopticMap(segments.shape)
    for segment in np.unique(segments).tolist():
        label = segment % INSTANCE_OFFSET
        if label < num_classes:
            panoptic.add(segments == segment, label + 1)
    return panoptic
