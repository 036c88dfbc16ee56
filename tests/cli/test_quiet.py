"""Lines of upstream libraries are off the terminal, and stay in the log file."""

import warnings
from pathlib import Path

import pytest
from mmengine.logging import MMLogger, print_log

from bioattn_mm.cli.quiet import quiet_terminal


@pytest.mark.parametrize(('level', 'is_shown'), [('INFO', False), ('DEBUG', True)])
def test_noise_is_in_the_log_file_alone(level: str, is_shown: bool, tmp_path: Path, capsys) -> None:
    path = tmp_path / 'log.txt'
    with quiet_terminal():
        logger = MMLogger(f'quiet_{level}', log_file=str(path), log_level=level)
        for message in ('Config:\nmodel = dict()', 'a line of ours'):
            print_log(message, logger)
    printed = capsys.readouterr().out
    assert 'a line of ours' in printed and ('model = dict()' in printed) == is_shown
    assert 'model = dict()' in path.read_text()


def test_printed_lines_and_warnings(capsys: pytest.CaptureFixture) -> None:
    before = print
    with pytest.warns(UserWarning) as warned, quiet_terminal():
        print('loading annotations into memory...')
        print('ours')
        warnings.warn('Default ``avg_non_ignore`` is False, if you would like to', stacklevel=1)
        warnings.warn('another', stacklevel=1)
    assert capsys.readouterr().out == 'ours\n' and [str(one.message) for one in warned] == ['another']
    assert print is before
