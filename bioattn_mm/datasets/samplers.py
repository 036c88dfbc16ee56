"""Random augmentation that depends on the run's seed and the sample's place in the run, and on nothing else.

Workers of a data loader have random states of their own, which no checkpoint holds. Here a sampler gives each index
the seed of all that is drawn for its sample. The same sample is then made by whichever worker, of however many, in a
run that was interrupted and in one that was not.
"""

import random
from collections.abc import Iterator

import mmengine.dataset
import numpy as np
import torch
from mmcv.transforms import BaseTransform

from ..registry import DATA_SAMPLERS, TRANSFORMS


def seed_everything(*numbers: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators, those of the GPUs too, by several whole numbers together."""
    first, second, third = np.random.SeedSequence(numbers).generate_state(3).tolist()
    random.seed(first)
    np.random.seed(second)
    torch.manual_seed(third)


class SeededIndex(int):
    """Index of a sample in its dataset.

    Args:
        index: The index.
        seed: What `SeedSample` seeds the rest of the pipeline by, whole numbers from 0 on.
    """

    def __new__(cls, index: int, seed: tuple[int, ...]) -> 'SeededIndex':
        self = super().__new__(cls, index)
        self.seed = seed
        return self

    def __getnewargs__(self) -> tuple:  # for the way to a worker
        return int(self), self.seed


@DATA_SAMPLERS.register_module()
class SeededInfiniteSampler(mmengine.dataset.InfiniteSampler):
    """mmengine's, with indices that `SeedSample` understands: their seed is the place in the endless sequence."""

    def _infinite_indices(self) -> Iterator[SeededIndex]:
        for place, index in enumerate(super()._infinite_indices()):
            yield SeededIndex(index, (self.seed, place))


@DATA_SAMPLERS.register_module()
class SeededSampler(mmengine.dataset.DefaultSampler):
    """mmengine's, with indices that `SeedSample` understands: their seed is the epoch and the index."""

    def __iter__(self) -> Iterator[SeededIndex]:
        for index in super().__iter__():
            yield SeededIndex(index, (self.seed, self.epoch, index))


@TRANSFORMS.register_module()
class SeedSample(BaseTransform):
    """Seed what the rest of a training pipeline draws; the first transform of one.

    It changes nothing where the sampler is not one of this package, or the dataset chooses the index by itself.
    """

    def transform(self, results: dict) -> dict:
        seed = getattr(results.get('sample_idx'), 'seed', None)
        if seed is not None:
            seed_everything(*seed)
        return results
