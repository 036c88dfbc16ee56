"""Training without the samples that cannot be loaded."""

from collections.abc import Iterator

import torch
from mmengine.dataset import BaseDataset, Compose

from ..errors import InputError
from .checks import WHAT_TO_DO, BadDataError
from .transforms import CheckedLoadAnnotations, CheckedLoadImageFromFile, name_bad_files


class SkippingPipeline:
    """Wraps the pipeline of a dataset: returns None for a sample that cannot be loaded, and records its index.

    For None, mmengine's `BaseDataset` draws another sample.

    Args:
        pipeline: The pipeline of the dataset.
        num_samples: Length of the dataset.
        max_in_a_row: Number of consecutive bad samples that raises an error.

    Attributes:
        bad (torch.Tensor): (num_samples,) uint8, 1 for the samples found bad. In shared memory, so that the main
            process sees what the workers of the data loader find.

    Raises:
        InputError: The pipeline has no transform that detects bad samples; when called: `max_in_a_row` is reached.
    """

    def __init__(self, pipeline: Compose, num_samples: int, max_in_a_row: int) -> None:
        self.pipeline = pipeline
        self.loaders = [
            step
            for step in pipeline.transforms
            if isinstance(step, (CheckedLoadImageFromFile, CheckedLoadAnnotations))
        ]
        if not self.loaders:
            raise InputError(
                'bad data cannot be skipped: the training pipeline has neither '
                'bioattn_mm.CheckedLoadImageFromFile nor bioattn_mm.CheckedLoadAnnotations, which detect it'
            )
        self.max_in_a_row = max_in_a_row
        self.in_a_row = 0
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
    if hasattr(dataset, 'datasets'):
        children = dataset.datasets
    elif hasattr(dataset, 'dataset'):
        children = [dataset.dataset]
    else:
        yield dataset
        return
    for child in children:
        yield from leaf_datasets(child)


def name_bad_files_of(dataset: object) -> None:
    """`name_bad_files` of the pipelines of a dataset and of those that it wraps, where they have one."""
    for leaf in leaf_datasets(dataset):
        if isinstance(getattr(leaf, 'pipeline', None), Compose):
            name_bad_files(leaf.pipeline)
