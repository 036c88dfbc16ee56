"""benchmarks/scaling.py: its arithmetic, and the memory that it computes against memory that is there."""

import argparse
import math
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from mmengine.config import Config

from bioattn_mm.analysis.saved_activations import saved_bytes
from bioattn_mm.ops.constants import cached_constant

RATES = dict(rate=15.0, machine_bandwidth=150.0, network_bandwidth=25.0, latency=20.0, overlap=True, tree=True)


@pytest.fixture(scope='module')
def benchmarks(root: Path) -> Iterator[Path]:
    sys.path.insert(0, str(root / 'benchmarks'))
    yield root / 'benchmarks'
    sys.path.remove(str(root / 'benchmarks'))


@pytest.fixture
def scaling(benchmarks: Path) -> ModuleType:
    return import_module('scaling')


def test_the_row_that_the_page_writes_out(scaling: ModuleType, benchmarks: Path) -> None:
    step = scaling.Step(1.2e12, 191_000_000, 7, 2)
    transfer, messages = scaling.all_reduce_seconds(step, 64, argparse.Namespace(**RATES))
    assert transfer == pytest.approx(15.0e-3, rel=0.01) and messages == pytest.approx(1.7e-3, rel=0.02)
    assert scaling.exposed_seconds(step, 80e-3, transfer, messages) == pytest.approx(3.7e-3, rel=0.02)
    page = (benchmarks / 'scaling.md').read_text()
    fast = 100 * scaling.efficiency(step, 64, argparse.Namespace(**RATES))
    slow = 100 * scaling.efficiency(step, 64, argparse.Namespace(**{**RATES, 'overlap': False}))
    row = next(line for line in page.splitlines() if line.startswith('| transnext/mask_rcnn_tiny_coco | 1.20e12'))
    assert f'{slow:.0f} to {fast:.0f} %' in row.split('|')[7]


def test_a_ring_needs_more_messages_the_more_gpus(scaling: ModuleType) -> None:
    step = scaling.Step(1.2e12, 191_000_000, 7, 2)
    ring = argparse.Namespace(**{**RATES, 'tree': False})
    for count in scaling.GPUS:
        assert scaling.all_reduce_seconds(step, count, ring)[1] == pytest.approx(2 * (count - 1) * 7 * 20e-6)
    assert scaling.efficiency(step, 4096, ring) < 0.1
    assert all(math.isfinite(scaling.efficiency(step, count, ring)) for count in scaling.GPUS)


@pytest.fixture
def config(root: Path) -> Config:
    config = Config.fromfile(root / 'tests/tools/upernet_narrow.py')
    config.model.data_preprocessor.size = (64, 96)
    return config


def test_memory_of_a_step(benchmarks: Path, config: Config) -> None:
    memory_module = import_module('scaling_memory')
    memory = memory_module.memory_of(config)
    model = memory_module.build(config)
    images = torch.zeros(config.train_dataloader.batch_size, 3, 64, 96)

    def forward() -> list:
        features = model.extract_feat(images)
        return [*features, model.decode_head(features), model.auxiliary_head(features)]

    # Layers share their constants, but not in FakeTensorMode.
    assert memory.activations == pytest.approx(saved_bytes(forward, model), rel=0.01)
    sizes = [4 * parameter.numel() for parameter in model.parameters()]
    assert memory.parameters == sum(sizes)

    # Rank 0 of eight has an eighth of all that has eight rows, and of the rest a whole row at most.
    held = memory_module.shards_on_meta(config, 8)
    rows = sum(4 * parameter.numel() // len(parameter) for parameter in model.parameters())
    assert memory.shards(8) <= held <= memory.shards(8) + 4 * rows
    assert memory.shards(8) == pytest.approx(held, rel=0.02)
    assert not torch.distributed.is_initialized()


def test_constants_of_fake_tensors_are_not_kept() -> None:
    @cached_constant
    def constant(size: int) -> torch.Tensor:
        return torch.ones(size)

    with torch._subclasses.FakeTensorMode():
        assert isinstance(constant(3), torch._subclasses.FakeTensor)
    assert constant(3).tolist() == [1, 1, 1] and constant(3) is constant(3)


def test_the_page_has_every_number_of_gpus(scaling: ModuleType, benchmarks: Path) -> None:
    heads = re.findall(r'^\| config \|.*', (benchmarks / 'scaling.md').read_text(), flags=re.MULTILINE)
    assert all(f'{count} GPUs' in heads[0] for count in scaling.GPUS)
