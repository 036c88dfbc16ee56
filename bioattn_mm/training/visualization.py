"""Drawing the predictions of classifiers, and those for images of any number of channels."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import cv2
import mmcv
from mmengine.hooks import Hook
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer

from ..registry import HOOKS
from ..runtime.images import ImageKind, read_image, shown


@HOOKS.register_module()
class ClsVisualizationHook(Hook):
    """Draw the files of a test with their class and the prediction, one of `interval`, of `size` pixels.

    mmpretrain's `VisualizationHook` draws what the network gets, with red and blue swapped.
    """

    def __init__(self, draw: bool = False, interval: int = 50, size: int = 448) -> None:
        self.draw, self.interval, self.size = draw, interval, size
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
                    mmcv.imread(path, channel_order='rgb'), sample, resize=self.size, name=Path(path).stem,
                    step=self.num_seen,
                )  # fmt: skip
            self.num_seen += 1


@HOOKS.register_module()
class ChannelsVisualizationHook(Hook):
    """A visualization hook for test images of any number of channels, of which it draws three.

    Args:
        host: Type of the hook, of mmdet, mmseg or this package.
        kind: Arguments of the images' `ImageKind`.
        **kwargs: Other arguments of that hook.
    """

    def __init__(self, host: str, kind: dict, **kwargs: object) -> None:
        self.hook = MMENGINE_HOOKS.build(dict(type=host, **kwargs))
        self.kind = ImageKind(**kind)

    def before_test_epoch(self, runner: Runner) -> None:
        self.hook.before_test_epoch(runner)

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence) -> None:
        if not self.hook.draw:
            return
        with tempfile.TemporaryDirectory() as folder:  # the hook reads files: they are pictures in 8 bits
            for index, sample in enumerate(outputs):
                picture = Path(folder, str(index), f'{Path(sample.img_path).stem}.png')
                picture.parent.mkdir()
                image = shown(read_image(sample.img_path, self.kind))
                picture.write_bytes(cv2.imencode('.png', image)[1].tobytes())
                sample.set_metainfo(dict(img_path=str(picture)))
            self.hook.after_test_iter(runner, batch_idx, data_batch, outputs)
