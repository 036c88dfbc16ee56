"""Files that cannot be loaded and predictions that are NaN: errors name them, or a training goes on without them."""

import logging

import torch
from mmengine.dataset import BaseDataset
from mmengine.dist import all_reduce, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import BaseLoop, Runner
from mmengine.structures import BaseDataElement
from torch import Tensor

from ..checkpoints.files import is_finite
from ..data.skipping import SkippingPipeline, leaf_datasets, name_bad_files_of
from ..errors import InputError
from ..registry import HOOKS

# The names of predictions in a data sample begin with these.
PREDICTED = ('pred', 'seg_logits')


class NameBadFilesHook(Hook):
    """Let errors name the image or annotation that cannot be used (see `bioattn_mm.data.transforms`)."""

    def before_run(self, runner: Runner) -> None:
        for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
            if isinstance(loop, BaseLoop):  # else it is none, or not of this run
                name_bad_files_of(loop.dataloader.dataset)


@HOOKS.register_module()
class SkipBadDataHook(Hook):
    """Skip training samples whose image or annotation cannot be used, instead of ending with an error.

    A sample is bad if one of the transforms `bioattn_mm.CheckedLoad...` raises an error for it; another one, drawn at
    random, takes its place. Every `interval` iterations new ones are logged, each once, however many workers and
    ranks meet it. Validation and test skip nothing.
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
        if self.every_n_inner_iters(batch_idx, self.interval):
            self.log_new_ones()

    def after_train(self, runner: Runner) -> None:
        self.log_new_ones()
        number = sum(int(logged.sum()) for logged in self.logged)
        print_log(f'bad training samples skipped: {number} of {sum(map(len, self.datasets))}', 'current')

    def log_new_ones(self) -> None:
        """Log the samples that any process has found bad since the last call."""
        for dataset, logged in zip(self.datasets, self.logged):
            bad = dataset.pipeline.bad.clone()
            all_reduce(bad, 'max')
            new = (bad > logged).nonzero().flatten().tolist()
            logged.copy_(bad)
            for index in new if is_main_process() else ():
                reason = dataset.pipeline.reason(dataset.get_data_info(index))
                print_log(f'skipped: {reason}', 'current', logging.WARNING)


@HOOKS.register_module()
class FinitePredictionsHook(Hook):
    """End a test at the first prediction that is NaN, which metrics would count as a wrong one."""

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        for sample in outputs or ():
            check_predictions(sample)


def check_predictions(sample: BaseDataElement) -> None:
    for name, part in sample.items():
        values = part.values() if isinstance(part, BaseDataElement) else (part,)
        for value in values if name.startswith(PREDICTED) else ():
            if isinstance(value, Tensor) and value.is_floating_point():
                refuse_nan(name, value)


def refuse_nan(name: str, value: Tensor) -> None:
    """Raise an `InputError` if what a model predicts under a name has a value that is NaN."""
    if not is_finite(value) and value.isnan().any():
        raise InputError(
            f'the model predicts NaN ({name}): in mixed precision, leave out --amp or take bfloat16; in '
            'float32, its weights are of a training that has failed, or the image has extreme values'
        )
