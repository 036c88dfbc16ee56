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


def batches(sampler: InfiniteSampler | DefaultSampler, num_workers: int, count: int) -> list[dict]:
    # From another state each time, as that of a worker or of a run that was resumed.
    seed_everything(np.random.SeedSequence().generate_state(1)[0])
    loader = DataLoader(sampler.dataset, 2, sampler=sampler, num_workers=num_workers, collate_fn=collate)
    assert seed_samples(loader) == []
    return [batch for _, batch in zip(range(count), loader)]


@pytest.mark.parametrize('sampler', [InfiniteSampler, DefaultSampler, RepeatAugSampler])
def test_any_number_of_workers(sampler: type) -> None:
    expected = batches(sampler(dataset(), seed=3), 0, 3)
    for num_workers in (1, 2):
        assert batches(sampler(dataset(), seed=3), num_workers, 3) == expected
    assert batches(sampler(dataset(), seed=4), 0, 3) != expected


def test_after_samples_that_were_skipped() -> None:
    expected = batches(InfiniteSampler(dataset(), seed=3), 0, 6)
    resumed = InfiniteSampler(dataset(), seed=3)
    resumed.skip(4)
    assert batches(resumed, 2, 4) == expected[2:]


def test_every_epoch_draws_anew() -> None:
    infinite = batches(InfiniteSampler(dataset(), shuffle=False, seed=3), 0, 5)
    draws = {drawn for batch in infinite for drawn in zip(*batch['drawn'])}
    assert len(draws) == 10
    sampler = DefaultSampler(dataset(), shuffle=False, seed=3)
    first = batches(sampler, 0, 3)
    sampler.set_epoch(1)
    second = batches(sampler, 0, 3)
    assert [batch['index'] for batch in first] == [batch['index'] for batch in second]
    assert all(a['drawn'] != b['drawn'] for a, b in zip(first, second))


def test_repeated_augmentation_repeats_images_and_not_their_augmentation() -> None:
    sampler = RepeatAugSampler(dataset(), shuffle=False, num_repeats=3, seed=3)
    samples = [sample for batch in batches(sampler, 0, 3) for sample in zip(batch['index'], *batch['drawn'])]
    indices, *draws = zip(*samples)
    assert indices == (0, 0, 0, 1, 1)
    assert all(len(set(drawn)) == 5 for drawn in draws)


def test_copies_of_an_image_differ_and_are_repeated() -> None:
    def balanced() -> ClassBalancedDataset:
        return ClassBalancedDataset(dataset(), oversample_thr=0.4)  # one in five shows the first class

    expected = batches(DefaultSampler(balanced(), shuffle=False, seed=3), 0, 3)
    assert batches(DefaultSampler(balanced(), shuffle=False, seed=3), 2, 3) == expected
    assert [index for batch in expected for index in batch['index']] == [0, 0, 1, 2, 3, 4]
    assert len({drawn for batch in expected for drawn in zip(*batch['drawn'])}) == 6


def test_two_processes_make_the_samples_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_samples(rank: int, world_size: int) -> list[dict]:
        monkeypatch.setattr('mmengine.dataset.sampler.get_dist_info', lambda: (rank, world_size))
        sampler = SeededInfiniteSampler(dataset(), seed=3)
        data = Numbers(pipeline=[SeedSample(), draw], serialize_data=True)
        return [data[index] for _, index in zip(range(8 // world_size), sampler)]

    ranks = first_samples(0, 2), first_samples(1, 2)
    assert [sample for pair in zip(*ranks) for sample in pair] == first_samples(0, 1)


def test_an_index_without_a_seed_changes_nothing() -> None:
    torch.manual_seed(5)
    expected = torch.rand(())
    torch.manual_seed(5)
    SeedSample()(dict(sample_idx=2))
    assert torch.rand(()) == expected


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
