"""What a process of several does before it joins the others."""

import copy
import os
from datetime import timedelta
from unittest.mock import Mock

import pytest
import torch
from mmengine.config import Config

from bioattn_mm.errors import InputError
from bioattn_mm.training.config.distributed import prepare_process, set_strategy

from ...conftest import ROOT


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Mock(return_value=0)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: gpus() > 0)
    monkeypatch.setattr(torch.cuda, 'device_count', gpus)
    for name in ('RANK', 'LOCAL_RANK'):
        monkeypatch.setenv(name, '0')  # so that it is what it was after the test
        monkeypatch.delenv(name)
    for launcher, message in (('pytorch', 'start them with tools/dist_train.sh'), ('slurm', 'slurm needs GPUs')):
        with pytest.raises(InputError, match=message):
            prepare_process(Config(), launcher)
    gpus.return_value = 4
    monkeypatch.setenv('OMPI_COMM_WORLD_LOCAL_RANK', '1')
    prepare_process(Config(), 'mpi')
    assert os.environ['LOCAL_RANK'] == '1'  # for which mmengine wraps the model
    os.environ.update(RANK='12', LOCAL_RANK='4')
    with pytest.raises(InputError, match='no GPU for process 4 of this machine: start at most 4'):
        prepare_process(Config(), 'pytorch')


@pytest.mark.parametrize(('env_cfg', 'seconds'), [(dict(dist_cfg=dict(timeout=20)), 20), ({}, 600)])
def test_without_gpus_processes_join_over_gloo(env_cfg: dict, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch.distributed, 'init_process_group', join := Mock())
    monkeypatch.setenv('RANK', '0')
    config = Config(dict(env_cfg=env_cfg, find_unused_parameters=True, model_wrapper_cfg=dict(bucket_cap_mb=1)))
    prepare_process(config, 'pytorch')
    join.assert_called_once_with('gloo', timeout=timedelta(seconds=seconds))
    wrapper = dict(type='bioattn_mm.CPUDistributedDataParallel', broadcast_buffers=False, find_unused_parameters=True)
    assert config.model_wrapper_cfg == dict(wrapper, bucket_cap_mb=1, device_ids=None)


def test_options_go_before_the_file_of_a_strategy_which_tests_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """And single processes, with the config of a work dir."""
    options = {'strategy.reshard_after_forward': False}
    config = Config(dict(launcher='pytorch', optim_wrapper=dict(), custom_hooks=[dict(type='EMAHook')]))
    config.merge_from_dict(options)
    set_strategy(config, str(ROOT / 'configs/_base_/strategies/fsdp.py'), options)
    assert config.strategy == dict(type='bioattn_mm.FSDP2Strategy', reshard_after_forward=False)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch.distributed, 'init_process_group', Mock())
    monkeypatch.setenv('RANK', '0')
    training, test = copy.deepcopy(config), copy.deepcopy(config)
    prepare_process(training, 'pytorch')
    assert training.strategy == config.strategy and len(training.custom_hooks) == 2
    prepare_process(test, 'pytorch', trains=False)
    prepare_process(config, 'none')
    for each in (config, test):
        assert not {'strategy', 'runner_type'} & each.keys() and each.custom_hooks == [dict(type='EMAHook')]

    alone = dict(runner_type='FlexibleRunner', strategy=dict(type='SingleDeviceStrategy'))
    config = Config(alone)
    prepare_process(config, 'none')
    assert config.to_dict() == alone
