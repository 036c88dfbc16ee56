"""The memory that is left, which decides what can be predicted on."""

from pathlib import Path

import pytest
import torch

from bioattn_mm.inference.images import free_memory


def test_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device('cpu'), torch.device('cuda:0')
    assert free_memory(cpu) > 2**20
    monkeypatch.setattr(Path, 'read_text', lambda path, encoding: 'MemTotal: 9 kB\nMemAvailable:       3 kB\n')
    assert free_memory(cpu) == 3 * 1024
    monkeypatch.setattr(Path, 'read_text', lambda path, encoding: 'MemTotal: 9 kB\n')
    assert free_memory(cpu) == float('inf')
    for name, value in dict(mem_get_info=(100, 1000), memory_reserved=50, memory_allocated=20).items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert free_memory(gpu) == 130
