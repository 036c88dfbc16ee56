"""Averages of the weights."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from bioattn_mm.errors import InputError
from bioattn_mm.training.ema import ShardableEMAHook


def test_the_newest_weights_count_by_the_momentum() -> None:
    model = nn.Linear(2, 1, bias=False)
    hook, runner = ShardableEMAHook(momentum=0.1, interval=2), SimpleNamespace(model=model, iter=0)
    weights = [torch.tensor([[value, 4.0]]) for value in (1.0, 11.0, 6.0, 3.0)]
    model.weight.data = weights[0].clone()
    hook.before_train(runner)
    for step, weight in enumerate(weights):
        runner.iter = step
        model.weight.data = weight.clone()
        hook.after_train_iter(runner, step)
    # After the second and the fourth step: 0.9 * 1 + 0.1 * 11 = 2, and 0.9 * 2 + 0.1 * 3.
    torch.testing.assert_close(hook.average['weight'], torch.tensor([[2.1, 4.0]]))
    hook.before_val_epoch(runner)
    torch.testing.assert_close(model.weight.data, torch.tensor([[2.1, 4.0]]))
    hook.after_val_epoch(runner)
    assert torch.equal(model.weight.data, weights[-1])
    for momentum in (0, 1):
        with pytest.raises(InputError, match=f'momentum of ShardableEMAHook must .* got {momentum}'):
            ShardableEMAHook(momentum=momentum)


def test_shared_parameters_are_averaged_under_all_their_names() -> None:
    model, hook = nn.ModuleDict(dict(a=nn.Linear(1, 1), b=nn.Linear(1, 1))), ShardableEMAHook(momentum=0.5)
    model.b.weight = model.a.weight
    runner = SimpleNamespace(model=model, iter=0, _resume=True)
    nn.init.zeros_(model.a.weight)
    hook.before_train(runner)
    nn.init.constant_(model.a.weight, 10.0)
    hook.after_train_iter(runner, 0)
    hook.before_save_checkpoint(runner, saved := dict(state_dict=model.state_dict()))
    assert all(saved['state_dict'][f'{name}.weight'].item() == 5 for name in 'ab')
    hook.after_load_checkpoint(runner, saved)
    assert all(saved['state_dict'][f'{name}.weight'].item() == 10 for name in 'ab')
    assert hook.average['a.weight'].item() == 5


def test_a_resumed_run_goes_on_with_weights_and_average() -> None:
    model, hook = nn.Linear(2, 1, bias=False), ShardableEMAHook(momentum=0.5)
    runner = SimpleNamespace(model=model, iter=0, _resume=True)
    own, average = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 2.0]])
    hook.average, saved = {'weight': average}, dict(state_dict={'weight': own})
    hook.before_save_checkpoint(runner, saved)
    assert torch.equal(saved['state_dict']['weight'], average)
    with FakeTensorMode():  # of a GPU that need not be there
        hook.average = {'weight': torch.ones(2, device='cuda')}
        hook.before_save_checkpoint(runner, copied := dict(state_dict={}))
    assert copied['state_dict']['weight'].device.type == 'cpu'

    for resume in (False, True):
        hook, runner._resume = ShardableEMAHook(momentum=0.5), resume
        loaded = dict(saved, state_dict=dict(saved['state_dict']))
        hook.after_load_checkpoint(runner, loaded)
        assert bool(hook.average) == resume
        assert torch.equal(loaded['state_dict']['weight'], own if resume else average)
    assert hook.average['weight'].data_ptr() != average.data_ptr()
    hook.before_train(runner)  # which begins no average where there is one
    assert torch.equal(hook.average['weight'], average)
