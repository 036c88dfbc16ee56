"""Drawing the predictions of classifiers, and those for images of any number of channels."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cv2
import mmcv
from mmengine.hooks import Hook
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer

from ..registry import HOOKS
from ..runtime.channels import ImageKind, read_channels, shown


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
                    mmcv.imread(path, channel_order='rgb'), sample, resize=self.size, name=Path(path).stem,
                    step=self.num_seen,
                )  # fmt: skip
            self.num_seen += 1


@HOOKS.register_module()
class ChannelsVisualizationHook(Hook):
    """A visualization hook for images of any number of channels, of which it draws three.

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

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence[BaseDataElement]
    ) -> None:
        with self._pictures(outputs):
            self.hook.after_val_iter(runner, batch_idx, data_batch, outputs)

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence[BaseDataElement]
    ) -> None:
        with self._pictures(outputs):
            self.hook.after_test_iter(runner, batch_idx, data_batch, outputs)

    @contextmanager
    def _pictures(self, outputs: Sequence[BaseDataElement]) -> Iterator[None]:
        """Context in which the paths of the images are those of pictures in 8 bits, as the hook reads the files."""
        if not self.hook.draw:
            yield
            return
        paths = [sample.img_path for sample in outputs]
        with tempfile.TemporaryDirectory() as folder:
            for index, (sample, path) in enumerate(zip(outputs, paths)):
                picture = Path(folder, str(index), f'{Path(path).stem}.png')
                picture.parent.mkdir()
                picture.write_bytes(cv2.imencode('.png', shown(read_channels(path, self.kind)))[1].tobytes())
                sample.set_metainfo(dict(img_path=str(picture)))
            try:
                yield
            finally:
                for sample, path in zip(outputs, paths):
                    sample.set_metainfo(dict(img_path=path))
