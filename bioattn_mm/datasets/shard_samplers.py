"""Samplers that read shard after shard: few open files, and reads beside each other."""

import itertools
from collections.abc import Iterator

import numpy as np
from mmengine.dataset import BaseDataset

from ..errors import InputError
from ..registry import DATA_SAMPLERS
from .samplers import SeededIndex, SeededInfiniteSampler, SeededSampler
from .shards import BACKEND, ShardBackend

MIXED = 8


def shards_of(dataset: BaseDataset) -> np.ndarray:
    """Number of the shard of each sample of a dataset, (N,) int64.

    Raises:
        InputError: The dataset is not read from shards.
    """
    inner = getattr(dataset, 'dataset', dataset)  # of a wrapper such as `ClassBalancedDataset`
    backend_args = getattr(inner, 'backend_args', None) or {}
    if backend_args.get('backend') != BACKEND:
        raise InputError(
            f'{type(inner).__name__} is not read from shards, which the sampler goes by: add --shards DIR'
        )
    backend = ShardBackend(backend_args['shards'], backend_args['root'])
    return np.array([backend.shard_of(dataset.get_data_info(index)['img_path']) for index in range(len(dataset))])


def shard_order(
    shards: np.ndarray, seeds: tuple[int, ...], rank: int, world_size: int, mixed: int, round_up: bool
) -> np.ndarray:
    """The order in which a process reads its samples: shards in random order, some of them at a time mixed.

    Each process has samples that follow each other in the order of the shards, so that it opens but its part of them.

    Args:
        shards: (N,) number of the shard of each sample.
        seeds: Non-negative integers that the order depends on, the same in all processes.
        rank: Number of the process.
        world_size: How many there are.
        mixed: How many shards are mixed.
        round_up: Give each process as many samples, by repeating the first ones.

    Returns:
        np.ndarray: Indices of samples.
    """
    rng = np.random.default_rng(seeds)
    places = rng.permutation(shards.max() + 1)[shards]
    order = np.lexsort((rng.random(len(shards)), places))
    if round_up:
        order = np.resize(order, -(-len(order) // world_size) * world_size)
    order = np.array_split(order, world_size)[rank]
    groups = np.cumsum(np.diff(places[order], prepend=places[order[:1]]) != 0) // mixed
    return order[np.lexsort((np.random.default_rng((*seeds, rank)).random(len(order)), groups))]


class _ByShard:
    """Part of a sampler: what its shards are, and the order of an epoch.

    Args:
        dataset: Read from shards.
        mixed: How many shards are mixed.
        **kwargs: Arguments of the sampler.
    """

    def __init__(self, dataset: BaseDataset, mixed: int = MIXED, **kwargs: object) -> None:
        super().__init__(dataset, **kwargs)
        self.mixed, self.shards = mixed, shards_of(dataset)

    def _order(self, epoch: int, round_up: bool = True) -> list[int]:
        seeds = self.seed, epoch
        return shard_order(self.shards, seeds, self.rank, self.world_size, self.mixed, round_up).tolist()


@DATA_SAMPLERS.register_module()
class ShardSampler(_ByShard, SeededSampler):
    """`DefaultSampler` that reads shard after shard in training; its samples are augmented as those of that one.

    Args:
        dataset: Read from shards.
        mixed: How many shards are mixed.
        **kwargs: Arguments of mmengine's `DefaultSampler`.
    """

    def __iter__(self) -> Iterator[SeededIndex]:
        if not self.shuffle:
            yield from super().__iter__()
            return
        for index in self._order(self.epoch, self.round_up):
            yield SeededIndex(index, (self.seed, self.epoch, index))


@DATA_SAMPLERS.register_module()
class InfiniteShardSampler(_ByShard, SeededInfiniteSampler):
    """`InfiniteSampler` that reads shard after shard, again and again in other orders.

    Args:
        dataset: Read from shards.
        mixed: How many shards are mixed.
        **kwargs: Arguments of mmengine's `InfiniteSampler`.
    """

    def _indices_of_rank(self) -> Iterator[SeededIndex]:
        if not self.shuffle:
            yield from super()._indices_of_rank()
        place = self.rank
        for epoch in itertools.count():
            for index in self._order(epoch):
                yield SeededIndex(index, (self.seed, place))
                place += self.world_size
