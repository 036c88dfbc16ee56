"""Drawing the predictions of classifiers."""

from collections.abc import Sequence
from pathlib import Path

import mmcv
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer

from ..registry import HOOKS


@HOOKS.register_module()
class ClsVisualizationHook(Hook):
    """Draw the images of a test with their class and the prediction.

    mmpretrain's `VisualizationHook` draws what the network gets, which is small and has red and blue swapped. This
    one draws the files, as the hooks of mmdet and mmseg do, and takes the same arguments.

    Args:
        draw: Whether to draw.
        interval: Images from one that is drawn to the next.
        size: Short side of the drawing in pixels.
    """

    def __init__(self, draw: bool = False, interval: int = 50, size: int = 448) -> None:
        self.draw = draw
        self.interval = interval
        self.size = size
        self.num_seen = 0

    def before_test_epoch(self, runner: Runner) -> None:
        self.num_seen = 0

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence[BaseDataElement]
    ) -> None:
        for sample in outputs if self.draw else ():
            if self.num_seen % self.interval == 0:
                path = sample.img_path
                Visualizer.get_current_instance().visualize_cls(
                    mmcv.imread(path, channel_order='rgb'), sample, resize=self.size, name=Path(path).stem
                )
            self.num_seen += 1
