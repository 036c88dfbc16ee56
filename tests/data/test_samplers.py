"""The same sample of a run whoever makes it: any worker, any number of processes, before or after an interruption."""

import random

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset, ClassBalancedDataset, DefaultSampler, InfiniteSampler, RepeatDataset
from mmengine.dataset import pseudo_collate as collate
from mmpretrain.datasets import RepeatAugSampler
from torch.utils.data import DataLoader, RandomSampler

from bioattn_mm.data.samplers import SeededInfiniteSampler, SeedSample, seed_everything, seed_samples


def draw(results: dict) -> dict:
    """What a pipeline may draw from."""
    return dict(index=results['sample_idx'], drawn=(random.random(), np.random.rand(), torch.rand(()).item()))


class Numbers(BaseDataset):
    def load_data_list(self) -> list[dict]:
        return [dict(number=number) for number in range(5)]

    def get_cat_ids(self, idx: int) -> list[int]:
        return [int(idx == 0)]


def dataset() -> Numbers:
    return Numbers(pipeline=[draw], serialize_data=True)


def samples(sampler: InfiniteSampler | DefaultSampler, num_workers: int, batches: int) -> list[tuple[int, tuple]]:
    """The indices of the samples of some batches, and what is drawn for each."""
    # From another state each time, as that of a worker or of a run that was resumed.
    seed_everything(np.random.SeedSequence().generate_state(1)[0])
    loader = DataLoader(sampler.dataset, 2, sampler=sampler, num_workers=num_workers, collate_fn=collate)
    assert seed_samples(loader) == []
    return [one for _, batch in zip(range(batches), loader) for one in zip(batch['index'], zip(*batch['drawn']))]


@pytest.mark.parametrize('sampler', [InfiniteSampler, DefaultSampler, RepeatAugSampler])
def test_any_number_of_workers(sampler: type) -> None:
    expected = samples(sampler(dataset(), seed=3), 0, 3)
    for num_workers in (1, 2):
        assert samples(sampler(dataset(), seed=3), num_workers, 3) == expected
    assert samples(sampler(dataset(), seed=4), 0, 3) != expected


def test_every_epoch_draws_anew() -> None:
    infinite = samples(InfiniteSampler(dataset(), shuffle=False, seed=3), 0, 5)
    assert len({drawn for _, drawn in infinite}) == 10
    sampler = DefaultSampler(dataset(), shuffle=False, seed=3)
    first = samples(sampler, 0, 3)
    sampler.set_epoch(1)
    for (index, drawn), (same_index, other) in zip(first, samples(sampler, 0, 3), strict=True):
        assert index == same_index and drawn != other


@pytest.mark.parametrize(('sampler', 'expected'), [
    # One in five shows the first class.
    (DefaultSampler(ClassBalancedDataset(dataset(), oversample_thr=0.4), shuffle=False, seed=3), (0, 0, 1, 2, 3, 4)),
    (RepeatAugSampler(dataset(), shuffle=False, num_repeats=3, seed=3), (0, 0, 0, 1, 1)),
])  # fmt: skip
def test_copies_of_an_image_differ_and_are_repeated(sampler: DefaultSampler, expected: tuple) -> None:
    found = samples(sampler, 0, 3)
    assert samples(sampler, 2, 3) == found
    indices, draws = zip(*found)
    assert indices == expected and all(len(set(drawn)) == len(expected) for drawn in zip(*draws))


def test_two_processes_make_the_samples_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_samples(rank: int, world_size: int) -> list[dict]:
        monkeypatch.setattr('mmengine.dataset.sampler.get_dist_info', lambda: (rank, world_size))
        sampler = SeededInfiniteSampler(dataset(), seed=3)
        data = Numbers(pipeline=[SeedSample(), draw], serialize_data=True)
        return [data[index] for _, index in zip(range(8 // world_size), sampler)]

    ranks = first_samples(0, 2), first_samples(1, 2)
    assert [sample for pair in zip(*ranks) for sample in pair] == first_samples(0, 1)


def test_an_index_without_a_seed_changes_nothing() -> None:
    state = torch.get_rng_state()
    SeedSample()(dict(sample_idx=2))
    assert torch.equal(torch.get_rng_state(), state)


def test_twice_is_as_once() -> None:
    data = dataset()
    loader = DataLoader(data, sampler=DefaultSampler(data))
    assert seed_samples(loader) == seed_samples(loader) == []
    assert [type(step).__name__ for step in data.pipeline.transforms] == ['SeedSample', 'function']


class EverySecond(InfiniteSampler):
    """A sampler of a user's."""


UNSEEDED = 'samples of {} (seeded: InfiniteSampler, DefaultSampler, RepeatAugSampler)'


def test_what_cannot_be_seeded_is_named() -> None:
    data, repeated = dataset(), RepeatDataset(dataset(), times=2)
    for sampler, expected in (
        (EverySecond(data), UNSEEDED.format('EverySecond')),
        (RandomSampler(data), UNSEEDED.format('RandomSampler')),
        (DefaultSampler(repeated), 'samples of RepeatDataset (it does not hand the seeds on to a pipeline)'),
    ):
        (reason,) = seed_samples(DataLoader(getattr(sampler, 'dataset', data), sampler=sampler))
        assert reason.startswith(expected)
