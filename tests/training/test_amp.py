"""Mixed precision on the CPU: losses beside those of float32, accumulated gradients, resuming, what is refused.

That tools/test.py and tools/predict.py take it is tested beside them.
"""

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
from .short_trainings import CONFIGS, STEPS, resumed, train

# Of a loss, relative to float32. bfloat16 rounds to 1/256, and each step goes on from weights that differ already.
TOLERANCE = 0.03


@pytest.mark.usefixtures('bfloat16_anywhere')
@pytest.mark.parametrize('name', CONFIGS)
def test_losses_beside_those_of_float32(name: str, workplace: Path, tool: InProcess) -> None:
    expected = train(tool, workplace, name, f'{name}_float32')
    mixed = train(tool, workplace, name, f'{name}_mixed', '--amp', 'bfloat16')
    losses, expected_losses = ([line['loss'] for line in lines] for lines in (mixed, expected))
    assert losses == pytest.approx(expected_losses, rel=TOLERANCE)
    assert losses != expected_losses

    weights = torch.load(workplace / f'{name}_mixed/iter_{STEPS}.pth', weights_only=False)['state_dict']
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float32}
    if name == 'upernet':  # from the checkpoint in the middle, the same steps again
        assert resumed(tool, workplace, name, f'{name}_mixed', '--amp', 'bfloat16') == losses[STEPS // 2 :]


def test_gradients_are_accumulated() -> None:
    torch.manual_seed(0)
    images = torch.randn(4, 8)
    weights = []
    for counts in (1, 2):
        torch.manual_seed(1)
        model = nn.Linear(8, 3)
        config = dict(type='bioattn_mm.BFloat16OptimWrapper', accumulative_counts=counts)
        wrapper = build_optim_wrapper(model, dict(config, optimizer=dict(type='SGD', lr=1.0)))
        before = model.weight.detach().clone()
        for part in images.chunk(counts):
            with wrapper.optim_context(model):
                output = model(part)
                assert output.dtype == torch.bfloat16
                loss = output.float().square().mean()
            assert torch.equal(model.weight, before)
            wrapper.update_params(loss)
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
    if is_known:
        assert autocast_dtype('bfloat16', 'cpu') == torch.bfloat16
        return
    with pytest.raises(InputError, match='this CPU has no instructions for bfloat16 '):
        autocast_dtype('bfloat16', 'cpu')


def test_gpus_are_asked_nothing() -> None:
    assert [autocast_dtype(name, 'cuda:0') for name in ('float16', 'bfloat16')] == [torch.float16, torch.bfloat16]


def test_samples_in_float32() -> None:
    half = torch.rand(2, 3).bfloat16()
    sample = DataSample(
        pred_instances=InstanceData(scores=half[0], labels=torch.arange(3)), seg_logits=PixelData(data=half[None])
    )
    sample.set_pred_score(half[0])
    sample = in_float32(sample)
    assert (
        sample.pred_score.dtype == sample.pred_instances.scores.dtype == sample.seg_logits.data.dtype == torch.float32
    )
    assert torch.equal(sample.pred_score, half[0].float())
    assert sample.pred_instances.labels.dtype == torch.int64
