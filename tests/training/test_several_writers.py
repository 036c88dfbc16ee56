"""What one of several processes writes."""

from pathlib import Path

import pytest
from mmengine.hooks import LoggerHook

from bioattn_mm.training import runner

from .toy_run import toy_config


@pytest.mark.parametrize('is_main', [True, False])
def test_metrics_of_a_test_are_written_once(is_main: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, 'is_main_process', lambda: is_main)
    monkeypatch.chdir(tmp_path)
    config = toy_config(1, 1)
    config.update(
        test_dataloader=config.train_dataloader,
        test_evaluator=dict(type='DumpResults', out_file_path='x.pkl'),
        test_cfg={},
    )
    run = runner.build_runner(config)
    run._test_loop = run.build_test_loop(run._test_loop)
    run.call_hook('before_run')
    for hook in run.hooks:
        if isinstance(hook, LoggerHook):
            hook.after_test_epoch(run, {})
    assert len([*tmp_path.glob('*/*.json')]) == is_main
