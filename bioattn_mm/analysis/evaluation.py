"""Testing one checkpoint under several changes of its config."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from ..checkpoints import dataset_meta_of, read_checkpoint, weights_for, weights_of
from ..errors import InputError
from ..run_config.runner import build_runner


@dataclass
class TrainedModel:
    """A config and the weights of its model.

    Attributes:
        config: The config.
        checkpoint: File of the weights.
        state_dict: The weights.
        dataset_meta: What the checkpoint says about the data that it was trained on, such as `classes`, if anything.
    """

    config: Config
    checkpoint: str
    state_dict: dict[str, Tensor]
    dataset_meta: dict[str, object] = field(default_factory=dict)

    @classmethod
    def read(cls, config: Config, checkpoint: str) -> 'TrainedModel':
        """Read a checkpoint (see `read_checkpoint`)."""
        content = read_checkpoint(checkpoint)
        weights = weights_of(checkpoint, content)
        return cls(config, checkpoint, weights, dataset_meta_of(checkpoint, content))

    def test(self, config: Config, *hooks: Hook) -> dict[str, float]:
        """Run the test of a config with the weights.

        Args:
            config: A changed copy of the model's config, with a `work_dir` for logs, and an `experiment_name` that no
                other Runner of the process has. Changed in place.
            *hooks: Hooks of the Runner.

        Returns:
            The metrics of the config's evaluator.

        Raises:
            InputError: The weights do not fit the config's model.
        """
        config.log_level = 'WARNING'
        config.load_from, config.resume = None, False
        config.pop('visualizer', None)  # nothing is drawn, and a second one of its name in a process is warned of
        runner = build_runner(config)
        runner.model.load_state_dict(weights_for(runner.model, self.checkpoint, self.state_dict))
        for hook in hooks:
            runner.register_hook(hook)
        # COCO's evaluator prints its tables.
        with (
            open(Path(config.work_dir) / 'evaluation.log', 'a', encoding='utf-8') as log,
            contextlib.redirect_stdout(log),
        ):
            metrics = runner.test()
        # Some are NumPy scalars, which JSON does not take.
        return {name: float(value) for name, value in metrics.items()}


class Advance(Hook):
    """Reports the progress of a test.

    Args:
        advance: Called after each batch with its share of all batches.
    """

    def __init__(self, advance: Callable[[float], None]) -> None:
        self.advance = advance

    def after_test_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        self.advance(1 / len(runner.test_dataloader))


def choose_metric(metrics: dict[str, float], name: str | None = None) -> str:
    """Name of the metric that stands for a whole test.

    Args:
        metrics: What `TrainedModel.test` returned.
        name: The metric that the user asks for; None for mIoU, the AP of boxes or top-1 accuracy,
            whichever comes first.

    Raises:
        InputError: The test has no such metric.
    """
    name = name or next((metric for metric in metrics if metric.endswith(('mIoU', 'bbox_mAP', 'top1'))), None)
    if name not in metrics:
        raise InputError(f'no metric {name!r}: name one of {", ".join(metrics)} with --metric')
    return name
