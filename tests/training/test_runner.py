"""The Runner of a config: what it writes, how AdamW computes, and what of a config cannot train."""

import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.hooks import LoggerHook
from mmengine.optim import build_optim_wrapper
from torch import nn
from torch._subclasses import FakeTensorMode

from bioattn_mm.errors import InputError
from bioattn_mm.training import runner

from ..tools.running import forget_runs
from .toy_run import toy_config


@pytest.mark.usefixtures('place')
def test_one_process_writes_the_metrics_of_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_main in (True, False):
        monkeypatch.setattr(runner, 'is_main_process', Mock(return_value=is_main))
        monkeypatch.setattr(LoggerHook, 'after_test_epoch', write := Mock())
        forget_runs()
        (hook,) = (hook for hook in runner.build_runner(toy_config(1, 1)).hooks if isinstance(hook, LoggerHook))
        hook.after_test_epoch(None, {})
        assert write.called == is_main


def test_adamw_is_fused_on_a_gpu_where_the_config_says_nothing() -> None:
    for optimizer, device, fused in (
        (dict(type='AdamW'), 'cuda', True),
        (dict(type=torch.optim.AdamW), 'cuda', True),
        (dict(type='AdamW'), 'cpu', None),
        (dict(type='AdamW', fused=False), 'cuda', False),
        (dict(type='AdamW', foreach=True), 'cuda', None),
        (dict(type='SGD', lr=0.1), 'cuda', None),
    ):
        with FakeTensorMode():  # of a GPU that need not be there
            model = nn.Linear(2, 2, device=device)
        config = ConfigDict(optimizer=optimizer)
        run = SimpleNamespace(model=model, optim_wrapper=config)
        runner.use_fused_optimizer(run)
        assert config == dict(optimizer=optimizer)  # as it is written to the work dir
        built = build_optim_wrapper(nn.Linear(2, 2), run.optim_wrapper)
        assert built.optimizer.param_groups[0]['fused'] == fused, optimizer


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(optim_wrapper=dict(type='NoWrapper')), 'the run would fail: KeyError: NoWrapper '),
        (dict(train_cfg=dict(max_updates=3), log_level='DEBUG'), "the .*: TypeError: .*argument 'max_updates'"),
        (dict(train_dataloader=dict(batchsize=3)), "the run would fail: TypeError: .*'batchsize'"),
        # In a worker: its last line says the reason.
        (dict(train_dataloader=dict(num_workers=1, collate_fn=dict(x=1))), "the run would fail: TypeError: .*'x'$"),
        (dict(train_dataloader=dict(dataset=dict(root='x'))), 'the run .*: TypeError: ToyImages.. takes no '),
        (dict(custom_hooks=[dict(type='NoHook')]), 'the run would fail: KeyError: NoHook '),
        (dict(optim_wrapper=dict(optimizer=dict(betas=(2, 3)))), 'the run would fail: ValueError: .*beta'),
        (dict(train_dataloader=dict(batch_size=1)), 'batch normalisation cannot train with .*batch_size=1'),
    ],
)
def test_config_that_cannot_train(change: dict, message: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = toy_config(2, 1)
    config.update(launcher='none', work_dir=str(tmp_path))
    config = Config(Config._merge_a_into_b(change, config.to_dict(), allow_list_keys=True))
    with pytest.raises(InputError) as error, runner.failures_in_one_line(config) as hook:
        run = runner.build_runner(config)
        run.register_hook(hook)
        run.train()
    assert re.match(message, str(error.value)) and '\n' not in str(error.value)
    assert ('Traceback' in capsys.readouterr().err) == (config.log_level == 'DEBUG')
