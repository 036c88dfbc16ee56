"""Hooks of training."""

import logging

import torch
from mmengine.dataset import BaseDataset
from mmengine.dist import all_reduce, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor

from ..checkpoints import convert_first_conv, other_classes
from ..checkpoints.files import is_finite
from ..datasets.skipping import SkippingPipeline, leaf_datasets, name_bad_files_of
from ..errors import InputError
from ..registry import HOOKS
from .ema import unwrapped

# What is a prediction in a data sample, by how its name begins.
PREDICTED = ('pred', 'seg_logits')


@HOOKS.register_module()
class LeaveOutOtherClassesHook(Hook):
    """Start from a checkpoint of other classes: what goes by their number keeps its initial values.

    Without it, mmengine leaves these weights out as well, and logs several lines for each. Weights of a model of RGB
    images are converted to the model's channels.
    """

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        # A bare state dict, or one as mmengine saves it.
        weights, model = checkpoint.get('state_dict', checkpoint), unwrapped(runner.model)
        converted = convert_first_conv(model, runner.cfg.get('load_from'), weights)
        if converted:
            print_log(f'channels converted: {converted}', 'current')
        names = other_classes(weights, model.state_dict())
        for name in names:
            del weights[name]
        if names:
            print_log(f'left out, as of another number of classes: {", ".join(names)}', 'current')


class NameBadFilesHook(Hook):
    """Let errors name the image or annotation that cannot be used (see `bioattn_mm.datasets.transforms`).

    The config stays as it is written: the datasets of the Runner are changed once they are built.
    """

    priority = 'VERY_HIGH'  # before `SkipBadDataHook` looks for what it counts

    def before_train(self, runner: Runner) -> None:
        # mmengine starts the workers later, at the first iteration.
        for loop in (runner.train_loop, runner.val_loop):
            self._change(loop)

    def before_val(self, runner: Runner) -> None:
        self._change(runner.val_loop)

    def before_test(self, runner: Runner) -> None:
        self._change(runner.test_loop)

    @staticmethod
    def _change(loop: object) -> None:
        name_bad_files_of(getattr(loop, 'dataloader', None) and loop.dataloader.dataset)


@HOOKS.register_module()
class SkipBadDataHook(Hook):
    """Skip training samples whose image or annotation cannot be used, instead of ending with an error.

    A sample is bad if `bioattn_mm.CheckedLoadImageFromFile` or `bioattn_mm.CheckedLoadAnnotations` raises an error
    for it; another one, drawn at random, takes its place. Each bad sample is logged with its file and counted once,
    however many workers and ranks meet it. Workers read ahead, so that a few of them may not have been needed yet.
    Validation and test skip nothing: a metric over some of the images would be a different metric.

    Args:
        interval: Iterations between two logs of newly found bad samples.

    Raises:
        InputError: In `before_train`, if the pipeline of the training data has neither of the transforms.
    """

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval
        self.datasets: list[BaseDataset] = []
        self.logged: list[Tensor] = []

    def before_train(self, runner: Runner) -> None:
        # The worker processes start later, at the first step, and inherit the changed pipeline.
        self.datasets = list(leaf_datasets(runner.train_dataloader.dataset))
        for dataset in self.datasets:
            dataset.pipeline = SkippingPipeline(dataset.pipeline, len(dataset), dataset.max_refetch)
        self.logged = [torch.zeros_like(dataset.pipeline.bad) for dataset in self.datasets]

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self.every_n_inner_iters(batch_idx, self.interval) and self.log_new_ones():
            self.log_count()

    def after_train(self, runner: Runner) -> None:
        self.log_new_ones()
        self.log_count()

    def log_new_ones(self) -> bool:
        """Log the samples that any process has found bad since the last call; return whether there were any."""
        any_new = False
        for dataset, logged in zip(self.datasets, self.logged):
            bad = dataset.pipeline.bad.clone()
            all_reduce(bad, 'max')
            new = (bad > logged).nonzero().flatten().tolist()
            logged.copy_(bad)
            any_new |= bool(new)
            for index in new if is_main_process() else ():
                reason = dataset.pipeline.reason(dataset.get_data_info(index))
                print_log(f'skipped: {reason}', 'current', logging.WARNING)
        return any_new

    def log_count(self) -> None:
        """Log how many samples all processes together have found bad."""
        print_log(f'bad training samples skipped: {self.num_skipped()} of {sum(map(len, self.datasets))}', 'current')

    def num_skipped(self) -> int:
        """How many samples are known to be bad: by all processes at the last log, and by this one since."""
        bad = (dataset.pipeline.bad for dataset in self.datasets)
        return sum(int((known | logged).sum()) for known, logged in zip(bad, self.logged))


@HOOKS.register_module()
class FinitePredictionsHook(Hook):
    """End a test at the first prediction that is NaN, which metrics would count as a wrong one."""

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        for sample in outputs or ():
            check_predictions(sample)


def check_predictions(sample: BaseDataElement) -> None:
    """Raise an `InputError` if scores or boxes that a model predicts are NaN.

    Args:
        sample: A data sample of mmdet, mmseg or mmpretrain.
    """
    for name, part in sample.items():
        if not name.startswith(PREDICTED):
            continue
        for value in part.values() if isinstance(part, BaseDataElement) else (part,):
            if isinstance(value, Tensor) and value.is_floating_point():
                refuse_nan(name, value)


def refuse_nan(name: str, value: Tensor) -> None:
    """Raise an `InputError` if what a model predicts under a name has a value that is NaN."""
    if not is_finite(value) and value.isnan().any():
        raise InputError(
            f'the model predicts NaN ({name}): in mixed precision, leave out --amp or take bfloat16; in '
            'float32, its weights are of a training that has failed, or the image has extreme values'
        )
