"""Which CPUs have bfloat16; trainings in it are in config/test_computation.py."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from bioattn_mm.errors import InputError
from bioattn_mm.training.amp import BFloat16OptimWrapper, autocast_dtype


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


def test_gradients_that_are_accumulated_in_bfloat16_wait_for_their_synchronisation() -> None:
    model = torch.nn.Linear(2, 1)
    model.no_sync = Mock(side_effect=nullcontext)  # as DistributedDataParallel has it
    wrapper = BFloat16OptimWrapper(torch.optim.SGD(model.parameters(), 0.1), accumulative_counts=2)
    wrapper.initialize_count_status(model, 0, 2)
    for _ in range(2):
        with wrapper.optim_context(model):
            loss = model(torch.ones(1, 2)).sum()
        wrapper.update_params(loss)
        assert loss.dtype == torch.bfloat16 and model.no_sync.call_count == 1
