"""A rank that hangs: all end, and say which one it is and what it does."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.dist import get_rank
from torch.distributed import all_reduce

from bioattn_mm.engine.watchdog import EXIT_CODE, WatchdogHook
from bioattn_mm.errors import InputError
from bioattn_mm.run_config.distributed import set_watchdog

from .ranks import run_ranks

HOOK = 'bioattn_mm.WatchdogHook'


def loop(hanging: int | None, in_collective: bool) -> None:
    """Three iterations in which the ranks exchange something; one of them may hang in the second."""
    torch.distributed.init_process_group('gloo')
    with Path(f'stderr{get_rank()}.txt').open('w') as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    hook, runner = WatchdogHook(timeout=1), SimpleNamespace(iter=0)
    with hook.watching(lambda: runner.iter + 1):
        for runner.iter in range(3):
            if runner.iter == 1 and get_rank() == hanging and not in_collective:
                time.sleep(300)  # in the data loader
            hook.before_train_iter(runner)
            if runner.iter == 1 and get_rank() == hanging and in_collective:
                time.sleep(300)  # in the forward pass
            all_reduce(torch.zeros(1))
    time.sleep(1.3)  # nobody watches any more


@pytest.mark.parametrize('in_forward', [False, True])
def test_names_the_rank_that_hangs(tmp_path: Path, in_forward: bool) -> None:
    codes = run_ranks(loop, 1, in_forward, folder=tmp_path, world_size=2, timeout=60)
    assert codes == [EXIT_CODE] * 2
    waits, hangs = (Path(tmp_path, f'stderr{rank}.txt').read_text() for rank in range(2))
    # Whoever noticed it first says why.
    (reason,) = [line for line in (waits + hangs).splitlines() if line.startswith('error: ')]
    assert 'nothing has happened for 1 seconds, because the others wait for rank 1 on ' in reason
    assert hangs.startswith('rank 1 on ') and 'the stacks of its threads' in hangs
    line = 1 + Path(__file__).read_text().splitlines().index(
        '                time.sleep(300)  # in the ' + ('forward pass' if in_forward else 'data loader')
    )
    assert f'test_watchdog.py", line {line} in loop' in hangs
    assert waits.startswith('rank 0 on ') and ' in all_reduce' in waits


def test_says_nothing_where_nothing_hangs(tmp_path: Path) -> None:
    assert run_ranks(loop, None, False, folder=tmp_path, world_size=2) == [0, 0]
    assert not any(Path(tmp_path, f'stderr{rank}.txt').read_text() for rank in range(2))


def test_switched_on_for_several_processes() -> None:
    config = Config(dict(launcher='none', env_cfg=dict(dist_cfg=dict(timeout=2400))))
    set_watchdog(config, None)
    assert 'custom_hooks' not in config
    config.launcher = 'pytorch'
    set_watchdog(config, None)
    assert config.custom_hooks == [dict(type=HOOK, timeout=1800)]
    config.custom_hooks[0].timeout = 60
    set_watchdog(config, None)
    assert config.custom_hooks == [dict(type=HOOK, timeout=60)]
    set_watchdog(config, 90)
    assert config.custom_hooks == [dict(type=HOOK, timeout=90)]
    set_watchdog(config, 0)
    assert config.custom_hooks == []
    with pytest.raises(InputError, match=r'--hang-timeout 3000 must be less than the 2400 .*timeout=4000'):
        set_watchdog(config, 3000)
    with pytest.raises(InputError, match='must be 0 or more seconds, got -1'):
        WatchdogHook(-1)
