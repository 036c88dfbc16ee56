"""The files of `tools/predict.py` for models in PyTorch: also of panoptic ones."""

import numpy as np

from ..data.panoptic import PanopticMap
from ..runtime import results
from ..runtime.formats import write_png
from ..runtime.predictions import INSTANCE_OFFSET, Panoptic, Result


class Results(results.Results):
    """The results of a run of a `Predictor`: those of `bioattn_mm.runtime.results.Results`, and of panoptic models

    - `panoptic/NAME.png`, of videos `panoptic/NAME/FRAME.png`: the ID of the segment of every pixel, R + 256 G +
      256^2 B; 0 for pixels of none and of classes that were left out.
    - `predictions.json`: COCO's panoptic format, with the index of the class plus 1 as category id.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self.predictor.task == 'panoptic':
            num_things = self.predictor.config.model.panoptic_fusion_head.num_things_classes
            for index, category in enumerate(self.categories):
                category['isthing'] = int(index < num_things)

    def _write(self, name: str, entry: dict, result: Result) -> Result:
        if not isinstance(result, Panoptic):
            return super()._write(name, entry, result)
        kept = np.isin(result.segments % INSTANCE_OFFSET, self.kept)
        panoptic, file_name = PanopticMap(result.segments.shape), f'panoptic/{name}.png'
        for segment in np.unique(result.segments[kept]).tolist():
            panoptic.add(result.segments == segment, segment % INSTANCE_OFFSET + 1)
        write_png(self.folder / file_name, panoptic.image())
        about = dict(image_id=entry['id'], file_name=file_name, segments_info=panoptic.segments())
        self.annotations.append(about)
        return Panoptic(np.where(kept, result.segments, len(self.categories)))
