#!/usr/bin/env python
"""Upstream libraries' own tests, with mmcv's compiled operators and with those of this package.

PEERS has a folder for each library whose tests are to run, a checkout or these parts of one: `mmcv` (tests),
`mmdetection` (mmdet, configs, tests), `mmsegmentation` (mmseg, configs, tests), `timm` (tests). What fails with this
package alone is printed, and makes the exit code 1. Without `--compiled` the first run is with an mmcv without
operators. The variable PYTEST_ADDOPTS has more options of pytest, such as '-n 2'.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
OPS = """
    nms roi_align focal_loss ms_deformable_attn bbox deform_conv modulated_deform_conv roi_pool saconv masked_conv2d
    carafe deform_roi_pool psa_mask
"""
# Not what downloads weights, nor TorchScript's compiler, which does not read the backbones' Python (export traces
# it); of VARS in RVT, which has two maps, not the test that wants three.
OURS = (
    '(transnext or pervit or gab or vars or bioattn) and not (torchscript or pretrained)'
    ' and not (forward_features and rvt)'
)
# Folder in PEERS, name of the suite, where its tests are, and their names; of mmcv's those of operators that models
# call.
SUITES = [
    ('mmcv', "mmcv's operators", 'test_ops/test_{}.py', OPS),
    ('mmdetection', "mmdet's models", 'test_models/test_{}', 'detectors roi_heads seg_heads dense_heads mot tta'),
    ('mmdetection', "mmdet's other tests", 'test_{}', 'structures evaluation engine visualization'),
    ('mmdetection', "mmdet's data sets", 'test_{}', 'datasets'),
    ('mmsegmentation', "mmseg's models", 'test_{}', 'models'),
    ('mmsegmentation', "mmseg's other tests", 'test_{}', 'datasets engine evaluation structures'),
    ('timm', "timm's models, ours among them", 'test_{}.py', 'models'),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('peers', type=Path, help='folder of the checkouts')
    parser.add_argument('--compiled', type=Path, help='folder with an mmcv that has its operators')
    parser.add_argument('--suites', nargs='+', default=[], help='only suites with these words in their names')
    args = parser.parse_args()
    if not any((args.peers / folder).is_dir() for folder, *_ in SUITES):
        parser.error(f'{args.peers} has none of the folders')
    print('| suite | upstream: passed, failed, skipped | with bioattn_mm | fail with bioattn_mm alone |')
    print('| --- | --- | --- | --- |', flush=True)
    number = 0
    for folder, name, place, words in SUITES:
        where = args.peers / folder
        if not where.is_dir() or args.suites and not any(word in name for word in args.suites):
            continue
        arguments = [f'tests/{place.format(word)}' for word in words.split()]
        arguments += ['-k', OURS] if folder == 'timm' else []
        upstream = run(where, arguments, compiled=None if folder == 'timm' else args.compiled)
        ours = run(where, ['-p', 'bioattn_mm', *arguments])
        if not ours:
            parser.error(f'{where} has no tests of {name}')
        alone = sorted(test for test, state in ours.items() if state == 'failed' and upstream.get(test) != 'failed')
        number += len(alone)
        print(f'| {name} | {counts(upstream)} | {counts(ours)} | {len(alone)} |', flush=True)
        for test in alone:
            print(f'{name}: {test}', file=sys.stderr)
    return int(number > 0)


def run(where: Path, arguments: list[str], compiled: Path | None = None) -> dict[str, str]:
    """'passed', 'failed' or 'skipped' by the name of each test; what cannot be imported is a test that failed."""
    paths = [*(str(path.resolve()) for path in (compiled, where, ROOT) if path), os.environ.get('PYTHONPATH', '')]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / 'report.xml'
        options = ['-q', '-p', 'no:cacheprovider', '--continue-on-collection-errors', '-o', 'addopts=']
        options += [f'--junitxml={report}', f'--rootdir={where.resolve()}']
        command = [sys.executable, '-m', 'pytest', *options, *arguments]
        environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, paths))}
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)
        if not report.is_file():
            sys.exit(f'pytest ended with {done.returncode} in {where}:\n{(done.stdout + done.stderr)[-2000:]}')
        states = {}
        for case in ElementTree.parse(report).iter('testcase'):
            kinds = {child.tag for child in case}
            state = 'failed' if kinds & {'failure', 'error'} else 'skipped' if 'skipped' in kinds else 'passed'
            states[f'{case.get("classname")}::{case.get("name")}'] = state
        return states


def counts(states: dict[str, str]) -> str:
    number = Counter(states.values())
    return ', '.join(str(number[state]) for state in ('passed', 'failed', 'skipped'))


if __name__ == '__main__':
    sys.exit(main())
