#!/usr/bin/env python
"""Trainings on real data: one command a row of docs/results.md, which goes on where it was interrupted.

A row is a model, its data and how it is tested (`results/rows.yaml`), with a run for each seed. A run unpacks its
data from the archive, trains with tools/train.py --resume, tests, and puts what it measured into the file of its data
set in benchmarks/results; a run that is there as finished is not repeated. Of several rows, first all runs of the
first seed are made, then those of the next.
"""

import argparse
import csv
import fnmatch
import json
import os
import platform
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from statistics import mean

import bioattn_mm.cli.threads_and_memory  # noqa: F401

import numpy as np
import torch
from mmengine.config import Config
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from results_page import TRAINED, read_record, state_of, write_page, write_record
from results_rows import DATA, GROUPS, ROWS, Row

from bioattn_mm.cli.command_line import run_tool
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.files import read_json
from bioattn_mm.training.checkpoints import latest_checkpoint
from bioattn_mm.training.health import is_step, read_lines

ROOT = Path(__file__).resolve().parents[1]
INTERVAL = 60  # seconds between two looks at how far a training has come
MAX_POINTS = 40  # the most points of a curve of losses
# Every tenth of CIFAR-10's test images is tested many times, under corruptions and at several sizes.
SAMPLE_STEP = 10
SIZES = ('96', '144', '192', '288')
BIAS_MODES = ('extrapolate', 'interpolate', 'linear')
CORRUPTION_SEVERITY = '3'
# A box counts from this score on, and matches an object from this IoU on.
MIN_SCORE, MIN_IOU = 0.3, 0.5
# Classes of CamVid whose objects are a few pixels wide, which are learned last.
THIN_CLASSES = ('pole', 'sign symbol', 'fence', 'pedestrian', 'bicyclist')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    row_help = "rows by name or pattern, such as 'cifar10-*', or a section of the page by the name in its command"
    parser.add_argument('rows', nargs='*', metavar='ROW', help=row_help)
    parser.add_argument('--list', action='store_true', help='print the rows and how far each of their runs has come')
    parser.add_argument(
        '--table', action='store_true', help='write docs/results.md and its pictures from the records'
    )
    parser.add_argument('--data', metavar='FOLDER', help='folder of the archives; needed until they are unpacked')
    work_dir_help = 'folder for unpacked data, logs and checkpoints (default: %(default)s)'
    parser.add_argument('--work-dir', default='work_dirs/results', metavar='DIR', help=work_dir_help)
    parser.add_argument('--seeds', type=int, nargs='+', metavar='N', help="these seeds alone (default: the row's)")
    parser.add_argument('--note', default='', help='what to know of the machine, such as "beside other work"')
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    runs = [(row, seed) for pattern in args.rows for row in matching(pattern) for seed in args.seeds or row.seeds]
    # SIGTERM ends as Ctrl+C does: a training saves, and the record says how far it came.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = False
    for row, seed in sorted(runs, key=lambda run: run[1]):
        if state_of(read_record(row, seed)) == 'finished':
            print(f'{row.name}, seed {seed}: finished before, see benchmarks/results/{row.data}.json')
            continue
        place = Path(args.work_dir).absolute()
        prepare(row.data, place / 'data' / row.data, Path(args.data or '.'))
        try:
            Run(row, seed, place, args.note).go()
        except InputError as error:  # the other rows go on
            print(f'error: {error}', file=sys.stderr, flush=True)
            failed = True
    if args.list:
        for row in ROWS.values():
            for seed in row.seeds:
                print(f'{row.name:34} seed {seed}  {state_of(read_record(row, seed))}')
    if args.table:
        print(*write_page(ROOT / 'docs'), sep='\n')
    if not (runs or args.list or args.table):
        raise InputError(f'name a row, --list or --table; rows: {", ".join(ROWS)}')
    sys.exit(failed)


def matching(pattern: str) -> list[Row]:
    """The rows of a group, or those of a name or pattern."""
    rows = [row for group in GROUPS if group.name == pattern for row in group.rows]
    rows = rows or [row for name, row in ROWS.items() if fnmatch.fnmatchcase(name, pattern)]
    if not rows:
        raise InputError(f'no row {pattern!r}: --list prints them')
    return rows


def prepare(name: str, folder: Path, archives: Path) -> None:
    """Unpack a data set into a folder, if it is not there."""
    data = DATA[name]
    archive = archives / data.archive
    if folder.is_dir():
        return
    if not archive.is_file():
        raise InputError(
            f'no {archive}, an archive of {data.folder or "."} with {data.layout}: name its folder with --data; '
            f'{data.title} is from {data.source}'
        )
    print(f'unpacking {archive}', flush=True)
    # Named when it is whole, so that an interruption leaves no half of it.
    partial = folder.with_name(f'.{name}')
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as file:
        file.extractall(partial, filter='data')
    inside = partial / data.folder
    for of_class in sorted((inside / 'train').iterdir()) if data.num_val else ():
        (inside / 'val' / of_class.name).mkdir(parents=True)
        for image in sorted(of_class.iterdir())[-data.num_val :]:
            image.rename(inside / 'val' / of_class.name / image.name)
    inside.rename(folder)
    shutil.rmtree(partial, ignore_errors=True)


class Run:
    """One seed of a row: training, tests, and the record of both, with a note of the machine.

    The tools run in `place`, the folder of data and runs.
    """

    def __init__(self, row: Row, seed: int, place: Path, note: str) -> None:
        self.row, self.seed, self.place = row, seed, place
        self.folder = Path('runs', f'{row.name}-seed{seed}')  # relative to `place`
        self.metric = next(iter(next(group for group in GROUPS if row in group.rows).metrics))
        config, *options = row.config.split()
        self.record = read_record(row, seed) or dict(
            row=row.name, seed=seed, state='began', config=config, processor_hours=0.0
        )
        # A config of this checkout by its path, and one that the package has by its name.
        config = str(ROOT / config) if config.endswith('.py') else config
        options += [option.format(data=f'data/{row.data}') for option in row.options]
        self.training = ['train', config, *options, '--seed', str(seed), '--work-dir', str(self.folder), '--resume']
        self.record.update(
            command=shlex.join(['bioattn', *self.training]).replace(f'{ROOT}/', ''), hardware=hardware(note)
        )

    def go(self) -> None:
        """Train and test, and write the record whenever there is something new; what is in it is not done again."""
        begun = latest_checkpoint(self.place / self.folder) is not None
        if not begun:
            self.record.update(processor_hours=0.0)  # a run on another machine does not go on here
        if not begun or state_of(self.record) != TRAINED:
            self.record.update(metrics={}, tested=[])
            self.run(*self.training)
        # The paths are seen from the folder that the tools run in, as those of the data in the config are.
        checkpoint = str(self.folder / Path(latest_checkpoint(self.place / self.folder)).name)
        config = str(next((self.place / self.folder).glob('*.py')).relative_to(self.place))
        for kind in ('test_images', *self.row.tests):
            if kind not in self.record['tested']:
                metrics = self.record['metrics'] | getattr(self, kind)(config, checkpoint)
                self.write(metrics=metrics, tested=[*self.record['tested'], kind])
        self.write(state='finished')

    def run(self, tool: str, *arguments: str) -> None:
        """Run a tool to its end, its output in a file of its name; raise an `InputError` if it fails."""
        path = self.place / self.folder / f'{tool}.log'
        path.parent.mkdir(parents=True, exist_ok=True)
        print(f'{self.row.name}, seed {self.seed}: {tool}, see {path}', flush=True)
        command = [sys.executable, '-c', 'from bioattn_mm.cli.main import main; main()', tool, *arguments]
        environment = dict(os.environ, PYTHONPATH=f'{ROOT}{os.pathsep}{os.environ.get("PYTHONPATH", "")}')
        before = processor_hours()
        with path.open('a', encoding='utf-8') as file:
            process = subprocess.Popen(command, cwd=self.place, env=environment, stdout=file, stderr=file)
            try:
                while process.poll() is None:
                    try:
                        process.wait(INTERVAL)
                    except subprocess.TimeoutExpired:
                        self.note_progress()
            finally:
                process.terminate()
                process.wait()
                hours = self.record['processor_hours'] + processor_hours() - before
                self.record['processor_hours'] = round(hours, 4)
                self.note_progress()
        if process.returncode:
            lines = path.read_text(encoding='utf-8', errors='replace').strip().splitlines() or ['see its log']
            raise InputError(f'{self.row.name}, seed {self.seed}: {tool} failed: {lines[-1]}')

    def note_progress(self) -> None:
        """Write how far the training has come, if it has begun."""
        folder = self.place / self.folder
        log = folder / 'steps.jsonl'
        lines = list(read_lines(log)) if log.is_file() else []
        steps = [line for line in lines if is_step(line)]
        if not steps:
            return
        config = Config.fromfile(next(folder.glob('*.py')))
        losses = [[line['step'], round(line['loss'], 4)] for line in steps if line.get('loss') is not None]
        done = steps[-1]['step']
        self.write(
            iterations=done,
            of_iterations=config.train_cfg.max_iters,
            images_seen=done * config.train_dataloader.batch_size,
            hours=round(sum(line['time'] for line in steps) / 3600, 3),
            curve=[
                [line['step'], round(line[self.metric], 3)] for line in lines if line.get(self.metric) is not None
            ],
            losses=losses[:: max(1, len(losses) // MAX_POINTS)],
        )

    def write(self, **entries: object) -> None:
        """Write the record with new entries."""
        self.record.update(entries)
        write_record(self.row, self.seed, self.record)

    def empty(self, name: str) -> Path:
        """A folder of the run to write into, without what a test that was interrupted has left in it."""
        shutil.rmtree(self.place / self.folder / name, ignore_errors=True)
        return self.folder / name

    def test_images(self, config: str, checkpoint: str, *options: str) -> dict[str, float]:
        """The metrics of the test set."""
        out = self.empty('test')
        self.run('test', config, checkpoint, '--work-dir', str(out), *options)
        (written,) = (self.place / out).glob('*/*.json')
        metrics = read_json(written, 'test again')
        return {name: round(value, 4) for name, value in metrics.items() if 'time' not in name}

    def false_detections(self, config: str, checkpoint: str) -> dict[str, float]:
        """Draw the test images, truth beside prediction, and count objects that are not there or were not found."""
        out = self.empty('boxes')
        options = ('--show-dir', str(self.empty('drawn')))
        self.test_images(config, checkpoint, *options, '--cfg-options', f'test_evaluator.outfile_prefix={out}/test')
        truth = COCO(str(self.place / Config.fromfile(self.place / config).test_evaluator.ann_file))
        matching = COCOeval(truth, truth.loadRes(str(self.place / out / 'test.bbox.json')), 'bbox')
        matching.params.iouThrs, matching.params.useCats = [MIN_IOU], 0
        matching.evaluate()
        found = dict(false_alarms=0, missed=0)
        for image in matching.evalImgs:
            if image and image['aRng'] == matching.params.areaRng[0]:
                counted = (np.array(image['dtScores']) >= MIN_SCORE) & ~image['dtIgnore'][0]
                matched = np.isin(image['dtIds'], image['gtMatches'][0])
                found['false_alarms'] += int((counted & ~matched).sum())
                found['missed'] += int((image['gtIgnore'] == 0).sum() - (counted & matched).sum())
        return found

    def thin_things(self, config: str, checkpoint: str) -> dict[str, float]:
        """The mean IoU of classes with objects of a few pixels in width, from the table that mmseg logs in a test."""
        (log,) = (self.place / self.folder / 'test').glob('*/*.log')
        rows = re.findall(rf'\|\s*({"|".join(THIN_CLASSES)})\s*\|\s*([\d.]+)', log.read_text(encoding='utf-8'))
        return {'thin mIoU': round(mean(float(iou) for _, iou in rows), 4)}

    def official(self, config: str, checkpoint: str) -> dict[str, float]:
        """What COCO's own packages make of the predictions, written in the official format of results."""
        out = self.empty('official')
        (self.place / out).mkdir()
        evaluators = Config.fromfile(self.place / config).test_evaluator
        places = [f'.{index}' for index in range(len(evaluators))] if isinstance(evaluators, list) else ['']
        options = [f'test_evaluator{place}.outfile_prefix={out}/results' for place in places]
        self.test_images(config, checkpoint, '--cfg-options', *options)
        found, annotations = {}, f'data/{self.row.data}/annotations'
        for results in sorted((self.place / out).glob('results.*.json')):
            panoptic = results.name == 'results.panoptic.json'
            truth = f'{annotations}/{"panoptic" if panoptic else "instances"}_train2017.json'
            command = [sys.executable, str(ROOT / 'benchmarks/official_evaluation.py'), truth, str(results)]
            if panoptic:
                command += ['--segments', f'{annotations}/panoptic_train2017', f'{out}/results.panoptic']
            process = subprocess.run(command, cwd=self.place, stdout=subprocess.PIPE, text=True, check=False)
            if process.returncode:
                raise InputError(f'{self.row.name}: official_evaluation.py failed, see the lines above')
            found |= {f'official {name}': round(value, 4) for name, value in json.loads(process.stdout).items()}
        return found

    def sample(self, config: str) -> str:
        """Write a config that tests every tenth image of the test set; the tools that test many times take it."""
        changed = Config.fromfile(self.place / config)
        dataset = changed.test_dataloader.dataset
        number = len(read_json(self.place / dataset.ann_file, 'prepare the data again')['data_list'])
        dataset.indices = list(range(0, number, SAMPLE_STEP))
        path = self.folder / 'sample' / Path(config).name
        (self.place / path.parent).mkdir(exist_ok=True)
        changed.dump(self.place / path)
        return str(path)

    def corruptions(self, config: str, checkpoint: str) -> dict[str, float]:
        """The accuracy under corruptions, and its mean."""
        options = ('--severities', CORRUPTION_SEVERITY, '--out', str(self.folder / 'corruptions'))
        self.run('robustness', self.sample(config), checkpoint, *options)
        (found,) = read_json(self.place / self.folder / 'corruptions/robustness.json', 'test again')['models']
        return {name: round(found[name], 4) for name in ('clean', 'mPC', 'rPC')} | found['corruptions']

    def sizes(self, config: str, checkpoint: str) -> dict[str, float]:
        """The accuracy at several sizes, with each of TransNeXt's position biases."""
        out = self.empty('sizes')
        options = ('--sizes', *SIZES, '--modes', *BIAS_MODES, '--out', str(out))
        self.run('benchmark-extrapolation', self.sample(config), checkpoint, *options)
        with (self.place / out / 'table.csv').open(encoding='utf-8') as file:
            lines = list(csv.DictReader(file))
        modes = [f', {line["bias_mode"]}' if line['bias_mode'] else '' for line in lines]
        return {f'top-1 at {line["size"]}{mode}': round(float(line['value']), 4) for line, mode in zip(lines, modes)}


def processor_hours() -> float:
    """What the tools that have ended took of the processor."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) / 3600


def hardware(note: str) -> str:
    """What a run is run on."""
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    else:
        with open('/proc/cpuinfo', encoding='utf-8') as file:
            names = (line.partition(':')[2].strip() for line in file if line.startswith('model name'))
            name = next(names, platform.machine())  # processors of ARM have no name there
        number = torch.get_num_threads()
        name += f', {number} thread{"s" if number > 1 else ""}'
    return name + (f', {note}' if note else '')


if __name__ == '__main__':
    main()
