"""Mixed precision on the CPU: what is in bfloat16, and which CPUs have it."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from torch import nn

from bioattn_mm.errors import InputError
from bioattn_mm.training.amp import autocast_dtype


def test_forward_passes_alone_are_in_bfloat16() -> None:
    model = nn.Linear(8, 3)
    config = dict(type='bioattn_mm.BFloat16OptimWrapper', accumulative_counts=2, optimizer=dict(type='SGD', lr=1.0))
    wrapper, before = build_optim_wrapper(model, config), model.weight.detach().clone()
    for step in (1, 2):
        with wrapper.optim_context(model):
            output = model(torch.randn(4, 8))
        assert output.dtype == torch.bfloat16
        wrapper.update_params(output.float().square().mean())
        assert torch.equal(model.weight, before) == (step == 1) and model.weight.dtype == torch.float32


def test_cpus_with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: 'AVX512')
    for capabilities, is_known in (
        (dict(avx512_f=True, avx512_bf16=False, amx_bf16=False), False),
        (dict(avx512_f=True, avx512_bf16=True), True),
        (dict(neon=True, bf16=True), True),
        (dict(), False),
    ):
        monkeypatch.setattr(torch.cpu, 'get_capabilities', Mock(return_value=capabilities))
        refused = pytest.raises(InputError, match='this CPU has no instructions for bfloat16 ')
        with nullcontext() if is_known else refused:
            assert autocast_dtype('bfloat16', 'cpu') == torch.bfloat16
    # A GPU is asked nothing.
    assert [autocast_dtype(name, 'cuda:0') for name in ('float16', 'bfloat16')] == [torch.float16, torch.bfloat16]
