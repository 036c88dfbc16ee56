"""Reading mmengine's logs, and tools/analysis/plot_log.py."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bioattn_mm.analysis.training_log import TrainingLog, run_names, smooth

from ..tools.running import InProcess

TOOL = 'analysis/plot_log.py'


def training(iteration: int, loss: float, **more: object) -> dict:
    """A line as mmengine's LoggerHook writes it while training."""
    values = dict(base_lr=0.1, lr=0.1, data_time=0.5, loss=loss, **{'decode.d0.loss_mask': loss / 2}, time=1.5)
    return dict(values, **more, iter=iteration, step=iteration)


def validation(step: int, **metrics: float) -> dict:
    """A line as it writes it after a validation: the step counts iterations or epochs."""
    return dict(metrics, data_time=0.25, time=0.125, step=step)


def write_log(work_dir: Path, lines: list[dict], name: str = '20260101_000000', end: str = '\n') -> Path:
    file = work_dir / name / 'vis_data/scalars.json'
    file.parent.mkdir(parents=True)
    file.write_text('\n'.join(map(json.dumps, lines)) + end)
    return file


def test_a_resumed_run_is_joined_and_later_values_count(tmp_path: Path) -> None:
    first = [training(10, 5.0), training(20, 4.0), validation(20, mIoU=7.0), training(30, 3.0), training(40, 2.0)]
    write_log(tmp_path, [*first, validation(40, mIoU=9.0)], '20260101_000000')
    # Goes on from iteration 20, and is killed while it writes.
    write_log(tmp_path, [training(30, 3.5), training(40, 2.5)], '20260101_235959', end='\n{"loss": 1.')
    # Goes on from iteration 20 again.
    write_log(tmp_path, [training(30, 3.25), validation(30, mIoU=8.0)], '20260102_000000')
    # Ends before its first line.
    write_log(tmp_path, [], '20260103_000000', end='')
    log = TrainingLog.read(str(tmp_path))
    assert log.training['loss'] == {10: 5.0, 20: 4.0, 30: 3.25}
    assert log.validation == {'mIoU': {20: 7.0, 30: 8.0}}
    assert len(log.files) == 4
    assert log.training['lr'] == {10: 0.1, 20: 0.1, 30: 0.1}


def test_validations_of_epochs_are_placed_by_iteration(tmp_path: Path) -> None:
    lines = [
        training(50, 5.0, epoch=1),
        training(100, 4.0, epoch=1),
        validation(1, **{'coco/bbox_mAP': 0.1, 'loss': 9.0}),
        training(170, 3.0, epoch=2),
        validation(2, **{'coco/bbox_mAP': 0.2}),
    ]
    log = TrainingLog.read(str(write_log(tmp_path, lines)))
    assert log.validation == {'coco/bbox_mAP': {100: 0.1, 170: 0.2}, 'val/loss': {100: 9.0}}
    assert log.training['loss'] == {50: 5.0, 100: 4.0, 170: 3.0}
    assert log.epochs == {50: 1, 100: 1, 170: 2}
    # Goes on in the third epoch, which ends before the next line of a training that logs rarely.
    write_log(tmp_path, [validation(3, **{'coco/bbox_mAP': 0.3})], '20260102_000000')
    write_log(tmp_path, [validation(4, **{'coco/bbox_mAP': 0.4}), training(300, 2.0, epoch=5)], '20260103_000000')
    log = TrainingLog.read(str(tmp_path))
    assert log.validation['coco/bbox_mAP'] == {100: 0.1, 170: 0.4}


def test_a_run_can_be_named_by_work_dir_folder_or_file(tmp_path: Path) -> None:
    file = write_log(tmp_path / 'run', [training(1, 2.0)])
    for path in (file, file.parent, file.parent.parent, file.parent.parent.parent):
        assert TrainingLog.read(str(path)).files == [file]


def test_smoothing() -> None:
    assert smooth([3.0, 5.0, 1.0], 0) == [3.0, 5.0, 1.0]
    assert smooth([2.0] * 4, 0.9) == pytest.approx([2.0] * 4)
    # (0.5 * 0.5 * 1 + 0.5 * 3) / (0.25 + 0.5)
    assert smooth([1.0, math.nan, 3.0], 0.5) == pytest.approx([1.0, 1.0, 1.75 / 0.75])


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    names = ['a/tiny', 'b/tiny', 'b/base', 'a/tiny/20260101_000000/vis_data/scalars.json']
    assert run_names([str(tmp_path / name) for name in names]) == ['a/tiny', 'b/tiny', 'base', '20260101_000000']


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Work dirs of two runs: one by iterations, one by epochs."""
    lines = [training(10 * number, 6.0 / number) for number in range(1, 31)]
    write_log(tmp_path / 'ade/tiny', [*lines, validation(300, mIoU=40.0, mAcc=55.0)])
    lines = [training(20, 4.0, epoch=1), validation(1, mAP=-1.0), training(40, math.nan, epoch=2)]
    write_log(tmp_path / 'coco/tiny', lines)
    return [tmp_path / 'ade/tiny', tmp_path / 'coco/tiny']


def test_two_runs_in_one_picture(runs: list[Path], tmp_path: Path, tool: InProcess) -> None:
    printed = tool(tmp_path, TOOL, 'ade/tiny', 'coco/tiny', '--out', 'out', '--smooth', 0.9)
    with (tmp_path / 'out/log.csv').open() as file:
        rows = list(csv.DictReader(file))
    # Neither the losses of intermediate layers, nor the rate twice, nor an AP that is -1.
    assert list(rows[0]) == ['run', 'iteration', 'loss', 'lr', 'mIoU', 'mAcc', 'epoch']
    assert [row['run'] for row in rows] == ['ade/tiny'] * 30 + ['coco/tiny'] * 2
    assert (rows[1]['loss'], rows[29]['mIoU'], rows[30]['loss'], rows[30]['epoch']) == ('3.0', '40.0', '4.0', '1')
    first, second = json.loads((tmp_path / 'out/log.json').read_text())
    assert (first['name'], second['name']) == ('ade/tiny', 'coco/tiny')
    assert first['curves']['loss']['lowest'] == dict(iteration=300, value=0.2)
    assert second['curves']['loss']['last'] == dict(iteration=40, value=None)
    assert second['curves']['loss']['highest'] == dict(iteration=20, value=4.0)
    assert re.search(r'mIoU +│ ade/tiny +│ 40 \(300\)', printed)
    with Image.open(tmp_path / 'out/log.png') as image:
        assert np.asarray(image.convert('L')).std() > 10

    line = tool.refused(tmp_path, TOOL, 'ade/tiny', '--out', 'out')
    assert line == 'error: out/log.png is there already: name another folder for --out'


def test_chosen_keys_and_names(runs: list[Path], tmp_path: Path, tool: InProcess) -> None:
    args = ('ade/tiny', 'coco/tiny', '--out', 'out', '--names', 'one', 'two')
    tool(tmp_path, TOOL, *args, '--keys', 'mAP', '*.loss_*')
    with (tmp_path / 'out/log.csv').open() as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == {'run', 'iteration', 'epoch', 'mAP', 'decode.d0.loss_mask'}
    assert {row['run'] for row in rows} == {'one', 'two'}


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['absent'], r'no log of a training at absent \(no such file or folder\): name the work dir'),
        (['ade'], r'no log of a training at ade \(it holds no \*/vis_data/scalars.json\)'),
        (['empty'], 'nothing was logged in empty/20260101_000000/vis_data/scalars.json: the training ended before'),
        (['config.py'], 'config.py is no log of mmengine: line 1 is no JSON'),
        (['other.json'], 'other.json is no log of mmengine: line 1 has no iteration or step'),
        (['number.json'], 'number.json is no log of mmengine: line 1 has no iteration or step'),
        (['nested.json'], 'nested.json is no log of mmengine: line 1 is no JSON'),
        (['image.png'], 'image.png is no log of mmengine: not a text file'),
        (['ade/tiny', 'ade/../ade/tiny'], '.*/ade/tiny is named twice'),
        (['ade/tiny', '--keys', 'loss', 'mIuO'], '--keys mIuO matches nothing; logged were base_lr, .*mIoU, mAcc'),
        (['ade/tiny', '--names', 'a', 'b'], '--names must name each of the 1 runs, got 2 names'),
        (['ade/tiny', 'coco/tiny', '--names', 'a', 'a'], '--names must differ, got a a'),
        (['ade/tiny', '--smooth', '1'], '--smooth must be at least 0 and less than 1, got 1'),
    ],
)  # fmt: skip
def test_refuses_in_one_line(
    args: list[str], message: str, runs: list[Path], tmp_path: Path, tool: InProcess
) -> None:
    write_log(tmp_path / 'empty', [], end='')
    (tmp_path / 'config.py').write_text('model = dict()\n')
    (tmp_path / 'other.json').write_text('[1, 2]\n')
    (tmp_path / 'number.json').write_text('3\n')
    (tmp_path / 'nested.json').write_text('[' * 100_000 + '\n')
    (tmp_path / 'image.png').write_bytes(b'\x89PNG\xff\xfe')
    assert re.match(f'error: {message}', tool.refused(tmp_path, TOOL, *args, '--out', 'out'))
