"""Testing one checkpoint under several changes of its config."""

import contextlib
import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.hooks import Hook
from torch import Tensor, nn

from ..checkpoints import check_fit, read_state_dict, weights_for
from ..errors import InputError
from ..training.runner import build_runner
from .models import PRETRAINED, create_timm_model, timm_config


@dataclass
class TrainedModel:
    """A config and the weights of its model, which are of the file `checkpoint`."""

    config: Config
    checkpoint: str
    state_dict: dict[str, Tensor]

    @classmethod
    def read(cls, config: Config, checkpoint: str) -> 'TrainedModel':
        """Read a checkpoint (see `read_state_dict`)."""
        return cls(config, checkpoint, read_state_dict(checkpoint))

    def test(self, config: Config, *hooks: Hook) -> dict[str, float]:
        """Run a test with the weights, and some hooks, and return the metrics that are numbers.

        `config` is a changed copy of the model's, with a `work_dir` for logs, and an `experiment_name` that no other
        Runner of the process has. It is changed in place.
        """
        config.log_level = 'WARNING'
        config.load_from, config.resume = None, False
        config.pop('visualizer', None)  # nothing is drawn, and a second one of its name in a process is warned of
        runner = build_runner(config)
        runner.model.load_state_dict(self.weights_for(runner.model))
        for hook in hooks:
            runner.register_hook(hook)
        with (Path(config.work_dir) / 'evaluation.log').open('a', encoding='utf-8') as log:
            with contextlib.redirect_stdout(log):  # COCO's evaluator prints tables
                metrics = runner.test()
        # Some are NumPy scalars, which JSON does not take, and some are lists or matrices, of which none is compared.
        return {name: float(value) for name, value in metrics.items() if np.ndim(value) == 0}

    def weights_for(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights under the names that the model takes, or an `InputError` if they are of another."""
        if hasattr(model, '_add_state_dict_prefix'):  # mmpretrain's TimmClassifier gives and takes timm's names
            check_fit(self.checkpoint, self.state_dict, model.state_dict(), strict=True)
            return dict(self.state_dict)
        return weights_for(model, self.checkpoint, self.state_dict)


def beside(config: Config, other: Config) -> Config:
    """A classifier's config with the model and normalisation of another one, also of mmpretrain's own configs.

    Raises:
        InputError: One of them is no classifier, or they have other numbers of classes.
    """
    for each in (config, other):
        if each.default_scope != 'mmpretrain':
            why = 'only classifiers are tested beside others, on the images of the first'
            raise InputError(f'{each.filename} is no classifier: {why}')
    number, of_other = _num_classes(config), _num_classes(other)
    if number and of_other and number != of_other:
        found = f'{other.filename} has {of_other} classes, {config.filename} {number}'
        raise InputError(f'{found}: expected as many in both')
    changed = copy.deepcopy(config)
    changed.model = copy.deepcopy(other.model)
    if other.get('data_preprocessor'):
        changed.model.setdefault('data_preprocessor', copy.deepcopy(other.data_preprocessor))
    return changed


def _num_classes(config: Config) -> int | None:
    """The number of classes of a classifier's config; None where it does not say it."""
    return config.model.get('num_classes') or (config.model.get('head') or {}).get('num_classes')


def timm_classifier(config: Config, name: str, checkpoint: str, size: int) -> TrainedModel:
    """A classifier of timm, with the images, crops and evaluator of a config.

    Args:
        config: Config of a classifier.
        name: Name of the model; may have a tag of weights.
        checkpoint: File of its weights, or `PRETRAINED`.
        size: Side of the images in pixels, for models that must know it.
    """
    of_timm = timm_config(name)
    pretrained = checkpoint == PRETRAINED
    number = _num_classes(config)
    number = {} if pretrained or number is None else dict(num_classes=number)
    model, arguments = create_timm_model(name, pretrained, (size, size), **number)
    arguments |= dict(num_classes=model.num_classes, data_preprocessor=of_timm.model.data_preprocessor)
    settings = dict(type='TimmClassifier', model_name=name, **arguments)
    other = Config(dict(default_scope='mmpretrain', model=settings), cfg_text=name, filename=name)
    weights = model.state_dict() if pretrained else read_state_dict(checkpoint)
    return TrainedModel(beside(config, other), checkpoint, weights)


def choose_metric(metrics: dict[str, float], name: str | None = None) -> str:
    """The metric that stands for a whole test: `name`, else mIoU, the AP of boxes or top-1, whichever comes first.

    Raises:
        InputError: The test has no such metric, or none at all.
    """
    if not metrics:
        raise InputError('the test has no metrics: the model predicts nothing, or the config has no test_evaluator')
    name = name or next((metric for metric in metrics if metric.endswith(('mIoU', 'bbox_mAP', 'top1'))), None)
    if name not in metrics:
        raise InputError(f'no metric {name!r}: name one of {", ".join(metrics)} with --metric')
    return name
