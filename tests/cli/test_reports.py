"""Files that the tools write: nothing is overwritten, no folder is made too early, JSON is valid."""

import json
import math
from pathlib import Path

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure

from bioattn_mm.cli.reports import Report, print_table, write_contact_sheet
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.files import check_new, unique_name


def test_files_of_a_report(tmp_path: Path) -> None:
    report = Report(str(tmp_path / 'out'), 'a.csv', 'a.json', 'a.png')
    assert not (tmp_path / 'out').exists()
    report.write_csv('a.csv', [dict(x=1, y=math.nan), dict(x=2, z='\udce9')])
    report.write_json('a.json', dict(values=[1.5, math.nan, (-math.inf, 'nan')], nested=dict(value=math.inf)))
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [1, 0])
    figure.suptitle('$x_$ \\foo')  # the name of a class, and no formula
    report.write_figure('a.png', figure)
    assert (tmp_path / 'out' / 'a.csv').read_text().splitlines() == ['x,y,z', '1,nan,', '2,,\\udce9']
    text = (tmp_path / 'out' / 'a.json').read_text()
    assert json.loads(text) == dict(values=[1.5, None, [None, 'nan']], nested=dict(value=None))
    assert text.startswith('{\n "values"')
    drawn = cv2.imread(str(tmp_path / 'out' / 'a.png'))
    assert drawn.std() > 10 and drawn.shape == (120, 240, 3)
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == ['a.csv', 'a.json', 'a.png']
    assert str(report) == '  '.join(str(tmp_path / 'out' / name) for name in ('a.csv', 'a.json', 'a.png'))

    with pytest.raises(InputError, match='out/a.json is there already: name another folder for --out'):
        Report(str(tmp_path / 'out'), 'b.csv', 'a.json')
    Report(str(tmp_path / 'out'), 'b.csv')
    Report(str(tmp_path / 'out'), 'a.json', overwrite=True)


def test_new_paths(tmp_path: Path) -> None:
    (tmp_path / 'empty').mkdir()
    for name in ('empty', 'absent'):
        assert check_new(str(tmp_path / name), '--out') == tmp_path / name
    (tmp_path / 'file').touch()
    for path in (tmp_path, tmp_path / 'file'):
        with pytest.raises(InputError, match='name another folder for --show-dir'):
            check_new(str(path), '--show-dir')


def test_table_folds_what_is_too_wide(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('COLUMNS', '40')
    print_table('title', ('model', 'value'), [('m' * 60, 0.5), ('[/x]', 1)])
    printed = capsys.readouterr().out
    assert printed.startswith('title\n') and printed.count('m') == 60 + 1 and '0.5' in printed and '[/x]' in printed


def test_names_of_configs_are_unique() -> None:
    names = []
    for path in ('a/x.py', 'b/x.py', 'b/x.py', 'b/x.py', 'b/y.py'):
        names.append(unique_name(path, names))
    assert names == ['x', 'b/x', 'b/x (2)', 'b/x (3)', 'y']


def test_contact_sheet_samples_evenly(tmp_path: Path) -> None:
    paths = [tmp_path / f'{index:02d}.png' for index in range(11)]
    for index, path in enumerate(paths):
        cv2.imwrite(str(path), np.full((20, 40 if index else 20, 3), 20 * index, np.uint8))
    write_contact_sheet(paths, tmp_path / 'sheet.png')
    sheet = cv2.imread(str(tmp_path / 'sheet.png'))
    assert sheet.shape == (3 * 20 + 2 * 6, 2 * 40 + 6, 3)
    centers = [sheet[10 + 26 * row, 20 + 46 * column, 0] for row in range(3) for column in range(2)]
    assert centers == [20 * index for index in (0, 2, 4, 6, 8, 10)]
    assert sheet[10, 5, 0] == 255
