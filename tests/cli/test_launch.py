"""How tools/dist_*.sh end, and what processes know that torchrun starts again."""

import os
import signal
import sys
from importlib import reload
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from bioattn_mm.cli import launch, restarts

FAILED = ChildFailedError('train.py', {0: ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file='none')})


@pytest.mark.parametrize(
    ('error', 'refused', 'code'),
    [(FAILED, True, 2), (FAILED, False, None), (SignalException('', signal.SIGTERM), False, 128 + signal.SIGTERM)],
)
def test_exit_codes(error: Exception, refused: bool, code: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def torchrun(words: list[str]) -> None:
        assert words == ['--nnodes=1', 'train.py'] and os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] == '1'
        if refused:
            Path(os.environ[restarts.STARTS], restarts.REFUSED).touch()
        raise error

    monkeypatch.setattr(launch, 'torchrun', torchrun)
    monkeypatch.setattr(launch.PContext, 'close', launch.close)  # and as it was after the test
    monkeypatch.setattr(sys, 'argv', ['launch', '--nnodes=1', 'train.py'])
    monkeypatch.setattr(os, 'environ', {**os.environ})
    with pytest.raises(SystemExit if code else ChildFailedError) as raised:
        launch.main()
    assert getattr(raised.value, 'code', None) == code


@pytest.mark.parametrize(('error', 'seconds'), [(SignalException('', signal.SIGTERM), 3600), (FAILED, 30)])
def test_time_to_save_a_checkpoint(error: Exception, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal leaves processes more time than the failure of one of them does."""
    closed = []
    monkeypatch.setattr(launch, 'close_processes', lambda *arguments: closed.append(arguments))
    try:
        raise error
    except Exception:
        launch.close('context', signal.SIGTERM)
    assert closed == [('context', signal.SIGTERM, seconds)]


def test_a_process_that_is_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    restarts.note_refusal()  # outside of torchrun, nothing is noted
    assert not restarts.is_restart() and not restarts.is_restart()
    try:
        with monkeypatch.context() as patch:
            patch.setenv(restarts.STARTS, str(tmp_path))
            for rank in '01':
                patch.setenv('LOCAL_RANK', rank)
                reload(restarts)
                assert (restarts.is_restart(), restarts.is_restart()) == (False, True)
            restarts.note_refusal()
            with pytest.raises(SystemExit, match='^2$'):
                reload(restarts)
    finally:
        reload(restarts)
