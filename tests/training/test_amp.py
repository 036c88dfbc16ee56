"""Mixed precision on the CPU: losses beside those of float32, accumulated gradients, resuming, what is refused.

That tools/test.py and tools/predict.py take it is tested beside them.
"""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.structures import InstanceData, PixelData
from mmpretrain.structures import DataSample
from torch import nn

from bioattn_mm.errors import InputError
from bioattn_mm.training.amp import autocast_dtype, in_float32

from ..tools.running import InProcess
from .short_trainings import STEPS, train

# Of a loss, relative to float32. bfloat16 rounds to 1/256, and each step goes on from weights that differ already.
TOLERANCE = 0.03


@pytest.mark.usefixtures('bfloat16_anywhere')
@pytest.mark.parametrize('name', ['upernet', pytest.param('mask_rcnn', marks=pytest.mark.slow)])
def test_losses_beside_those_of_float32(name: str, workplace: Path, tool: InProcess) -> None:
    expected = train(tool, workplace, name, f'{name}_float32')
    losses = train(tool, workplace, name, f'{name}_mixed', '--amp', 'bfloat16')
    assert losses == pytest.approx(expected, rel=TOLERANCE)
    assert losses != expected
    weights = torch.load(workplace / f'{name}_mixed/iter_{STEPS}.pth', weights_only=False)['state_dict']
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float32}


def test_gradients_are_accumulated() -> None:
    images, weights = torch.randn(4, 8), []
    for counts in (1, 2):
        torch.manual_seed(1)
        model = nn.Linear(8, 3)
        config = dict(type='bioattn_mm.BFloat16OptimWrapper', accumulative_counts=counts)
        wrapper = build_optim_wrapper(model, dict(config, optimizer=dict(type='SGD', lr=1.0)))
        before = model.weight.detach().clone()
        for part in images.chunk(counts):
            assert torch.equal(model.weight, before)
            with wrapper.optim_context(model):
                output = model(part)
            assert output.dtype == torch.bfloat16
            wrapper.update_params(output.float().square().mean())
        assert not torch.equal(model.weight, before) and model.weight.dtype == torch.float32
        weights.append(model.weight.detach())
    torch.testing.assert_close(*weights, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    ('capabilities', 'is_known'),
    [
        (dict(architecture='x86_64', avx2=True, avx512_f=True, avx512_bf16=False, amx_bf16=False), False),
        (dict(architecture='x86_64', avx512_f=True, avx512_bf16=True), True),
        (dict(architecture='aarch64', neon=True, bf16=True), True),
        (dict(architecture='aarch64', neon=True, bf16=False), False),
        (dict(), False),
    ],
)
def test_cpus(capabilities: dict, is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda: capabilities)
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: 'AVX512')
    refused = pytest.raises(InputError, match='this CPU has no instructions for bfloat16 ')
    with nullcontext() if is_known else refused:
        assert autocast_dtype('bfloat16', 'cpu') == torch.bfloat16
    # A GPU is asked nothing.
    assert [autocast_dtype(name, 'cuda:0') for name in ('float16', 'bfloat16')] == [torch.float16, torch.bfloat16]


def test_samples_in_float32() -> None:
    half = torch.rand(2, 3).bfloat16()
    sample = DataSample(
        pred_instances=InstanceData(scores=half[0], labels=torch.arange(3)), seg_logits=PixelData(data=half[None])
    )
    sample.set_pred_score(half[0])
    sample = in_float32(sample)
    for value in (sample.pred_score, sample.pred_instances.scores, sample.seg_logits.data[0, 0]):
        assert value.dtype == torch.float32 and torch.equal(value, half[0].float())
    assert sample.pred_instances.labels.dtype == torch.int64
