"""What attention does while a model trains, for the log."""

import copy
import math

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..errors import InputError
from ..registry import HOOKS
from ..training.ema import unwrapped
from .attention_recorder import record_attention
from .locality import measure_model

# First part of the names in the log.
PREFIX = 'attention'
# Where a measure was taken, not what.
PLACES = ('layer', 'name', 'head', 'height', 'width')


@HOOKS.register_module()
class AttentionStatisticsHook(Hook):
    """Log how local the attention of each layer is, every `interval` iterations and at both ends of the training.

    The measures of `analysis.locality.measure_model` go to the visualizer as `attention/MEASURE/layerN`. The
    backbone may be of any library (see `record_attention`). It sees the first images of the first batch, in eval mode
    and float32. Of several processes the main one does it alone.

    Args:
        interval: Iterations from one measurement to the next.
        num_images: Number of images.
        num_queries: Tokens of each layer whose attention is measured, evenly spread over the image.
        per_head: Log each head, as `attention/MEASURE/layerN/headM`, instead of the means over the heads.

    Raises:
        InputError: Before the training, if the model is divided among the processes; in the first iteration, if it
            has no attention that can be measured.
    """

    def __init__(
        self, interval: int = 500, num_images: int = 2, num_queries: int = 32, per_head: bool = False
    ) -> None:
        for name, value in dict(interval=interval, num_images=num_images, num_queries=num_queries).items():
            if value < 1:
                raise InputError(f'{name} of AttentionStatisticsHook must be at least 1, got {value}')
        self.interval, self.num_images, self.num_queries = interval, num_images, num_queries
        self.per_head = per_head
        self.images: Tensor | None = None

    def before_train(self, runner: Runner) -> None:
        # The main process alone would wait for the parts of the weights that the others have.
        if any(isinstance(module, FSDPModule) for module in unwrapped(runner.model).modules()):
            raise InputError(
                'AttentionStatisticsHook needs the whole model in a process: leave out FSDP, or the hook'
            )

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: dict | None = None) -> None:
        if not is_main_process():
            return
        if self.images is None:
            with torch.no_grad():
                data = unwrapped(runner.model).data_preprocessor(copy.deepcopy(data_batch), False)
            self.images = data['inputs'][: self.num_images]
        if runner.iter % self.interval == 0:
            self.log(runner)

    def after_train(self, runner: Runner) -> None:
        if self.images is not None:
            self.log(runner)

    def log(self, runner: Runner) -> None:
        model = unwrapped(runner.model)
        backbone = getattr(model, 'backbone', None)
        rows = [] if backbone is None else self.measure(backbone)
        if not rows:
            raise InputError(
                'AttentionStatisticsHook needs a backbone with attention that can be measured: '
                f'{type(model if backbone is None else backbone).__name__} has none'
            )
        # 'iter' marks what is logged of a training, as mmengine does it.
        runner.visualizer.add_scalars(dict(self.named(rows), iter=runner.iter), step=runner.iter)

    def measure(self, backbone: nn.Module) -> list[dict]:
        """The measures of every head of a backbone, which comes back in the mode that it was in."""
        was_training = backbone.training
        backbone.eval()
        try:
            return measure_model([record_attention(backbone, self.images)], self.num_queries)
        finally:
            backbone.train(was_training)

    def named(self, rows: list[dict]) -> dict[str, float]:
        """The finite measures by their names in the log, of each head or averaged over the heads."""
        values: dict[str, list[float]] = {}
        for row in rows:
            for measure in row.keys() - PLACES:
                name = f'{PREFIX}/{measure}/layer{row["layer"]}'
                name += f'/head{row["head"]}' if self.per_head else ''
                if isinstance(row[measure], float) and math.isfinite(row[measure]):
                    values.setdefault(name, []).append(row[measure])
        return {name: sum(of_heads) / len(of_heads) for name, of_heads in sorted(values.items())}
