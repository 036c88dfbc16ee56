"""Training without the samples that cannot be loaded."""

from collections.abc import Iterator

import torch
from mmengine.dataset import BaseDataset, Compose

from ..errors import InputError
from .checks import WHAT_TO_DO, BadDataError
from .transforms import (
    CheckedLoadAnnotations,
    CheckedLoadImageFromFile,
    CheckedLoadPanopticAnnotations,
    name_bad_files,
)


class SkippingPipeline:
    """Wraps the pipeline of a dataset: returns None for a sample that cannot be loaded, and records its index.

    For None, mmengine's `BaseDataset` draws another sample; so many bad ones in a row raise an `InputError`.
    """

    def __init__(self, pipeline: Compose, num_samples: int, max_in_a_row: int) -> None:
        self.pipeline = pipeline
        checked = CheckedLoadImageFromFile, CheckedLoadAnnotations, CheckedLoadPanopticAnnotations
        self.loaders = [step for step in pipeline.transforms if isinstance(step, checked)]
        self.max_in_a_row, self.in_a_row = max_in_a_row, 0
        # 1 for a sample found bad; in shared memory, so that the main process sees what the workers find.
        self.bad = torch.zeros(num_samples, dtype=torch.uint8).share_memory_()

    def __call__(self, data: dict) -> dict | None:
        index = data['sample_idx']
        try:
            sample = self.pipeline(data)
        except BadDataError as error:
            self.bad[index] = 1
            self.in_a_row += 1
            if self.in_a_row >= self.max_in_a_row:
                raise InputError(f'{self.in_a_row} bad training samples in a row, the last one: {error}') from error
            return None
        self.in_a_row = 0
        return sample

    def reason(self, data: dict) -> str:
        """Load a bad sample again, to say what is wrong with it."""
        try:
            for load in self.loaders:
                data = load(data)
        except BadDataError as error:
            return str(error).removesuffix(f'; {WHAT_TO_DO}')
        return f'the image {data["img_path"]} or its annotations could not be loaded at first, but can be now'


def leaf_datasets(dataset: object) -> Iterator[BaseDataset]:
    """The datasets that load samples themselves, inside of wrappers such as `RepeatDataset` or `ConcatDataset`."""
    inner = getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]
    if inner == [None]:
        yield dataset
    else:
        for child in inner:
            yield from leaf_datasets(child)


def name_bad_files_of(dataset: object) -> None:
    """`name_bad_files` of the pipelines of a dataset and of those that it wraps, where they have one."""
    for leaf in leaf_datasets(dataset):
        if isinstance(getattr(leaf, 'pipeline', None), Compose):
            name_bad_files(leaf.pipeline)
