"""mmseg's drawing of label maps, for images of any size."""

import numpy as np
from mmengine.structures import PixelData
from mmseg.visualization import SegLocalVisualizer

from ..registry import VISUALIZERS
from ..runtime.drawing import draw
from ..runtime.predictions import Segmentation


@VISUALIZERS.register_module()
class SegVisualizer(SegLocalVisualizer):
    """mmseg's `SegLocalVisualizer` with the same arguments, which draws label maps as `runtime.drawing` does.

    mmseg itself sorts the pixels of each class in a list to find a place for its name: a gigabyte for some millions.
    """

    def _draw_sem_seg(
        self,
        image: np.ndarray,
        sem_seg: PixelData,
        classes: list[str],
        palette: list[list[int]],
        with_labels: bool | None = True,
    ) -> np.ndarray:
        labels = Segmentation(np.asarray(sem_seg.cpu().data)[0])
        names = classes if with_labels else [''] * len(classes)
        drawn = draw(np.ascontiguousarray(image[..., ::-1]), labels, names, palette, self.alpha)
        drawn = np.ascontiguousarray(drawn[..., ::-1])
        self.set_image(drawn)
        return drawn
