"""Own data with a random defect: inspect-data and a training name it, and neither ends with a traceback."""

import contextlib
import io
import os
import re
import runpy
import shutil
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope

from bioattn_mm.cli.reports import Report
from bioattn_mm.data.checks import Problem
from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.errors import InputError, printable
from bioattn_mm.training.config.data_check import check_annotations
from bioattn_mm.training.config.loading import load_config, read_config
from bioattn_mm.training.config.pipelines import build_dataset

from ..defects import Case, coco_case, mask_case
from .running import ROOT

# Of each kind; CONTRIBUTING.md says how to run more.
NUM_CASES = int(os.environ.get('BIOATTN_NUM_DEFECTS', '24')) // 2
GROUPS = 3  # so that parallel workers share them
LOADERS = ('train_dataloader', 'val_dataloader')
KINDS = {'coco': (coco_case, 'mask_rcnn_small.py'), 'label_maps': (mask_case, 'upernet_small.py')}


@pytest.fixture(scope='module')
def inspect_data() -> dict:
    """The functions of the tool."""
    return runpy.run_path(str(ROOT / 'tools/inspect_data.py'), run_name='inspect_data')


def inspected(case: Case, config: Config, functions: dict, out: Path) -> list[str]:
    """What inspect-data says of both splits: its problems, or its error line; and it draws an image of each."""
    lines = []
    for key in LOADERS:
        problems: list[Problem] = []
        try:
            data = DataArguments(str(case.folder), problems=problems)
            changed = load_config(config, data=data, mini=True, dataloaders=(key,))
            init_default_scope(changed.default_scope)
            with contextlib.redirect_stdout(io.StringIO()):
                found = functions['inspect'](changed, key, None, True, problems)
            functions['draw_samples'](changed, key, key == LOADERS[0], 1, Report(str(out)), found)
        except (InputError, OSError) as error:
            return [*lines, str(error)]
        lines += [printable(f'{problem.kind}: {problem}') for problem in found.problems]
    return lines


def trained(case: Case, config: Config) -> list[str]:
    """What a training says before its first step, and where it loads each image: notes, or its error line."""
    lines = []
    try:
        config = load_config(config, data=DataArguments(str(case.folder)), mini=True, dataloaders=LOADERS)
        usual = '3 classes: |train: |val: |.*drawn for'  # of data without a defect
        lines += [line for line in config.own_data if not re.match(usual, line)]
        with contextlib.redirect_stdout(io.StringIO()):  # what pycocotools prints
            lines += check_annotations(config, LOADERS)
            for key in LOADERS:
                dataset = build_dataset(config[key].dataset)
                for index in range(len(dataset)):
                    dataset[index]
    except (InputError, OSError) as error:
        lines.append(str(error))
    return lines


@pytest.mark.parametrize('group', range(GROUPS))
@pytest.mark.parametrize('kind', KINDS)
def test_a_random_defect_is_named(kind: str, group: int, inspect_data: dict, tmp_path: Path) -> None:
    write, name = KINDS[kind]
    config = read_config(str(ROOT / 'tests/tools' / name))
    for seed in range(group, NUM_CASES, GROUPS):
        case = write(tmp_path / f'data_{seed}', seed)
        lines = inspected(case, config, inspect_data, tmp_path / f'out_{seed}'), trained(case, config)
        for said, legal in zip(lines, case.legal):
            assert all(len(line.splitlines()) == 1 for line in said), (seed, said)
            assert legal or any(name in line for line in said for name in case.names), (seed, said)
        shutil.rmtree(case.folder)
        shutil.rmtree(tmp_path / f'out_{seed}', ignore_errors=True)
