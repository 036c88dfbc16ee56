"""Random augmentation that depends on the run's seed and the sample's place in the run alone.

The workers of a data loader have random states that no checkpoint holds. So the sampler hands each index on with a
seed, and the pipeline starts by seeding all generators with it: whichever worker makes the sample, however many there
are, and whether or not the run was interrupted.
"""

import functools
import itertools
import random
from collections.abc import Iterator

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.dataset import ClassBalancedDataset, Compose, DefaultSampler, InfiniteSampler
from torch.utils.data import DataLoader, Sampler


def seed_everything(*numbers: int, devices: bool = True) -> None:
    """Seed the generators of Python, NumPy and PyTorch, and those of devices, by several non-negative integers."""
    first, second, third = np.random.SeedSequence(numbers).generate_state(3).tolist()
    random.seed(first)
    np.random.seed(second)
    (torch.manual_seed if devices else torch.default_generator.manual_seed)(third)


class SeededIndex(int):
    """Index of a sample in its dataset, with the non-negative integers to seed its augmentation by."""

    def __new__(cls, index: int, seed: tuple[int, ...]) -> 'SeededIndex':
        self = super().__new__(cls, index)
        self.seed = seed
        return self

    def __getnewargs__(self) -> tuple:  # the sampler is pickled on its way to a worker
        return int(self), self.seed


class SeededInfiniteSampler(InfiniteSampler):
    """mmengine's `InfiniteSampler` with seeded indices: by the run's seed and the place in the endless sequence."""

    def _infinite_indices(self) -> Iterator[SeededIndex]:
        for place, index in enumerate(super()._infinite_indices()):
            yield SeededIndex(index, (self.seed, place))


class SeededSampler(DefaultSampler):
    """mmengine's `DefaultSampler` with seeded indices: by the run's seed, the epoch and the index."""

    def __iter__(self) -> Iterator[SeededIndex]:
        for index in super().__iter__():
            yield SeededIndex(index, (self.seed, self.epoch, index))


class SeededClassBalancedDataset(ClassBalancedDataset):
    """mmengine's `ClassBalancedDataset`, which hands the seed of an index on to the dataset that it repeats."""

    def _get_ori_dataset_idx(self, idx: int) -> int:
        index, seed = super()._get_ori_dataset_idx(idx), getattr(idx, 'seed', None)
        return index if seed is None else SeededIndex(index, seed)


@functools.cache
def seeded_repeats(sampler: type[Sampler]) -> type[Sampler]:
    """mmpretrain's `RepeatAugSampler`, whose import takes seconds, with seeds of the copies of an image by place."""

    class SeededRepeatAugSampler(sampler):
        def __iter__(self) -> Iterator[SeededIndex]:
            for place, index in enumerate(super().__iter__()):
                yield SeededIndex(index, (self.seed, self.epoch, self.rank, place))

    return SeededRepeatAugSampler


def skip_batches(batch_sampler: Sampler, number: int) -> None:
    """Make the next pass of a batch sampler leave out a number of its first batches; later passes are whole again."""
    original = type(batch_sampler)

    class Remaining(original):
        # A generator starts at its first batch. A data loader with workers calls this twice and reads the second.
        def __iter__(self) -> Iterator[list[int]]:
            self.__class__ = original
            yield from itertools.islice(original.__iter__(self), number, None)

    batch_sampler.__class__ = Remaining  # a data loader does not let its batch sampler be replaced


class SeedSample(BaseTransform):
    """Seed what the rest of the pipeline draws, if the index of the sample has a seed."""

    def transform(self, results: dict) -> dict:
        seed = getattr(results.get('sample_idx'), 'seed', None)
        if seed is not None:
            seed_everything(*seed, devices=False)
        return results


def seed_samples(dataloader: DataLoader) -> list[str]:
    """Make the sampler of a data loader seed its indices, and the pipeline of its dataset start with `SeedSample`.

    The workers have not started. Returns what cannot be seeded and why; nothing if all samples are seeded.
    """
    unseeded = []
    # Not `dataloader.sampler`, which PyTorch ignores where a config has a batch sampler.
    sampler = getattr(dataloader.batch_sampler, 'sampler', None)
    name = type(sampler).__name__
    # Classes change, which differ in methods alone: a data loader does not let its sampler be replaced.
    if seeded := {InfiniteSampler: SeededInfiniteSampler, DefaultSampler: SeededSampler}.get(type(sampler)):
        sampler.__class__ = seeded
    elif name == 'RepeatAugSampler':
        sampler.__class__ = seeded_repeats(type(sampler))
    elif not isinstance(sampler, (SeededInfiniteSampler, SeededSampler)) and name != 'SeededRepeatAugSampler':
        unseeded.append(f'samples of {name} (seeded: InfiniteSampler, DefaultSampler, RepeatAugSampler)')

    dataset = dataloader.dataset
    # The first is of mmdet and mmseg, and hands on the index as it is.
    while type(dataset).__name__ == 'MultiImageMixDataset' or isinstance(dataset, ClassBalancedDataset):
        if type(dataset) is ClassBalancedDataset:
            dataset.__class__ = SeededClassBalancedDataset
        dataset = dataset.dataset
    pipeline = getattr(dataset, 'pipeline', None)
    if not isinstance(pipeline, Compose):
        unseeded.append(f'samples of {type(dataset).__name__} (it does not hand the seeds on to a pipeline)')
    elif not any(isinstance(step, SeedSample) for step in pipeline.transforms):
        pipeline.transforms.insert(0, SeedSample())
    return unseeded
