"""Testing one checkpoint under several changes of its config."""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from ..checkpoints import check_fit, dataset_meta_of, read_checkpoint, read_state_dict, weights_for, weights_of
from ..errors import InputError
from ..run_config.runner import build_runner
from .models import PRETRAINED, create_timm_model, timm_config


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
            The metrics of the config's evaluator that are numbers.

        Raises:
            InputError: The weights do not fit the config's model.
        """
        config.log_level = 'WARNING'
        config.load_from, config.resume = None, False
        config.pop('visualizer', None)  # nothing is drawn, and a second one of its name in a process is warned of
        runner = build_runner(config)
        runner.model.load_state_dict(self.weights_for(runner.model))
        for hook in hooks:
            runner.register_hook(hook)
        # COCO's evaluator prints its tables.
        with (
            open(Path(config.work_dir) / 'evaluation.log', 'a', encoding='utf-8') as log,
            contextlib.redirect_stdout(log),
        ):
            metrics = runner.test()
        # Some are NumPy scalars, which JSON does not take, and some are lists or matrices, of which none is compared.
        return {name: float(value) for name, value in metrics.items() if np.ndim(value) == 0}

    def weights_for(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights under the names that the model takes.

        Raises:
            InputError: They are of another model.
        """
        if hasattr(model, '_add_state_dict_prefix'):  # mmpretrain's TimmClassifier gives and takes timm's names
            check_fit(self.checkpoint, self.state_dict, model.state_dict(), strict=True)
            return dict(self.state_dict)
        return weights_for(model, self.checkpoint, self.state_dict)


def beside(config: Config, other: Config) -> Config:
    """A classifier's config with the images, crops and evaluator of another one.

    Args:
        config: The one whose images are taken.
        other: The one whose model and normalisation are taken, also of mmpretrain's own configs.

    Raises:
        InputError: One of them is no classifier, or they have other numbers of classes.
    """
    for each in (config, other):
        if each.default_scope != 'mmpretrain':
            raise InputError(
                f'{each.filename} is no classifier: only classifiers are tested beside others, on the images of the '
                'first'
            )
    numbers = [num_classes_of(each) for each in (config, other)]
    if None not in numbers and numbers[0] != numbers[1]:
        raise InputError(
            f'{other.filename} has {numbers[1]} classes, {config.filename} {numbers[0]}: expected as many in both'
        )
    changed = copy.deepcopy(config)
    changed.model = copy.deepcopy(other.model)
    if other.get('data_preprocessor'):
        changed.model.setdefault('data_preprocessor', copy.deepcopy(other.data_preprocessor))
    return changed


def num_classes_of(config: Config) -> int | None:
    """The number of classes of a classifier's config; None where it does not say it."""
    return config.model.get('num_classes') or (config.model.get('head') or {}).get('num_classes')


def timm_classifier(config: Config, name: str, checkpoint: str, size: int) -> 'TrainedModel':
    """A classifier of timm, with the images, crops and evaluator of a config.

    Args:
        config: Config of a classifier.
        name: Name of the model; may have a tag of weights.
        checkpoint: File of its weights, or `PRETRAINED`.
        size: Side of the images in pixels, for models that must know it.

    Raises:
        InputError: timm has no such model or weights, or the config has another number of classes.
    """
    of_timm = timm_config(name)
    pretrained = checkpoint == PRETRAINED
    number = num_classes_of(config)
    number = {} if pretrained or number is None else dict(num_classes=number)
    model, arguments = create_timm_model(name, pretrained, (size, size), **number)
    settings = dict(type='TimmClassifier', model_name=name, **{**arguments, 'num_classes': model.num_classes})
    other = Config(
        dict(
            default_scope='mmpretrain',
            model=dict(settings, data_preprocessor=of_timm.model.data_preprocessor),
        ),
        cfg_text=name,
        filename=name,
    )
    weights = model.state_dict() if pretrained else read_state_dict(checkpoint)
    return TrainedModel(beside(config, other), checkpoint, weights)


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
        InputError: The test has no such metric, or none at all.
    """
    if not metrics:
        raise InputError('the test has no metrics: the model predicts nothing, or the config has no test_evaluator')
    name = name or next((metric for metric in metrics if metric.endswith(('mIoU', 'bbox_mAP', 'top1'))), None)
    if name not in metrics:
        raise InputError(f'no metric {name!r}: name one of {", ".join(metrics)} with --metric')
    return name
