#!/usr/bin/env python
"""Trainings on real data: one command a row of docs/results.md, which goes on where it was interrupted.

A row is a model, its data and how it is tested (`results_rows.py`), with a run for each seed. A run unpacks its data
from the archive, trains with tools/train.py --resume, tests, and writes what it measured as JSON into
benchmarks/results; a run that is there as finished is not repeated. Of several rows, first all runs of the first seed
are made, then those of the next.
"""

import argparse
import csv
import fnmatch
import json
import os
import platform
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from statistics import mean

import bioattn_mm.process_settings  # noqa: F401

import torch
from mmengine.config import Config
from results_page import TRAINED, read_record, record_path, state_of, write_page
from results_rows import (
    BIAS_MODES,
    CORRUPTION_SEVERITY,
    DATA,
    GROUPS,
    ROWS,
    SAMPLE_STEP,
    SIZES,
    THIN_CLASSES,
    THIN_MIOU,
    Row,
    at,
)

from bioattn_mm.analysis.training_log import TrainingLog
from bioattn_mm.cli.command_line import run_tool
from bioattn_mm.engine.checkpoints import latest_checkpoint
from bioattn_mm.errors import InputError
from bioattn_mm.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[1]
# Seconds between two looks at how far a training has come.
INTERVAL = 60
MAX_POINTS = 40  # of a curve of losses


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'rows',
        nargs='*',
        metavar='ROW',
        help="rows by name or pattern, such as 'cifar10-*', or a section of the page by the name in its command",
    )
    parser.add_argument('--list', action='store_true', help='print the rows and how far each of their runs has come')
    parser.add_argument('--table', action='store_true', help='write docs/results.md and its pictures from the JSON')
    parser.add_argument('--data', metavar='FOLDER', help='folder of the archives; needed until they are unpacked')
    parser.add_argument(
        '--work-dir',
        default='work_dirs/results',
        metavar='DIR',
        help='folder for unpacked data, logs and checkpoints (default: %(default)s)',
    )
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
        if state_of(read_record(row.name, seed)) == 'finished':
            print(f'{row.name}, seed {seed}: finished before, see {record_path(row.name, seed)}')
            continue
        place = Path(args.work_dir).absolute()
        prepare(row.data, place, args.data)
        try:
            Run(row, seed, place, args.note).go()
        except InputError as error:  # the other rows go on
            print(f'error: {error}', file=sys.stderr, flush=True)
            failed = True
    if args.list:
        for row in ROWS.values():
            for seed in row.seeds:
                print(f'{row.name:34} seed {seed}  {state_of(read_record(row.name, seed))}')
    if args.table:
        print(*write_page(ROOT / 'docs'), sep='\n')
    if not (runs or args.list or args.table):
        raise InputError(f'name a row, --list or --table; rows: {", ".join(ROWS)}')
    if failed:
        sys.exit(1)


def matching(pattern: str) -> list[Row]:
    """The rows of a group, or those of a name or pattern."""
    rows = [row for group in GROUPS if group.name == pattern for row in group.rows]
    rows = rows or [row for name, row in ROWS.items() if fnmatch.fnmatchcase(name, pattern)]
    if not rows:
        raise InputError(f'no row {pattern!r}: --list prints them')
    return rows


def prepare(name: str, place: Path, archives: str | None) -> None:
    """Unpack a data set into `place/data/NAME`, if it is not there.

    Raises:
        InputError: There is no archive.
    """
    data, folder = DATA[name], place / 'data' / name
    if folder.is_dir():
        return
    archive = Path(archives or '.', data.archive)
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
    if data.num_val:
        for of_class in sorted((inside / 'train').iterdir()):
            place_of_val = inside / 'val' / of_class.name
            place_of_val.mkdir(parents=True)
            for image in sorted(of_class.iterdir())[-data.num_val :]:
                image.rename(place_of_val / image.name)
    inside.rename(folder)
    shutil.rmtree(partial, ignore_errors=True)


class Run:
    """One seed of a row: training, tests, and the record of both.

    Args:
        row: The row.
        seed: The seed.
        place: Folder of data and runs, in which the tools are run.
        note: What the record says of the machine.
    """

    def __init__(self, row: Row, seed: int, place: Path, note: str) -> None:
        self.row, self.seed, self.place = row, seed, place
        self.folder = Path('runs', f'{row.name}-seed{seed}')  # from `place`
        self.metric = next(iter(next(group for group in GROUPS if row in group.rows).metrics))
        self.path = record_path(row.name, seed)
        self.record = read_record(row.name, seed) or dict(
            row=row.name, seed=seed, state='began', config=row.config, processor_hours=0.0
        )
        # A config of this checkout by its path, and one that the package has by its name.
        config = str(ROOT / row.config) if row.config.endswith('.py') else row.config
        options = [option.format(data=f'data/{row.data}') for option in row.options]
        self.training = ['train', config, *options, '--seed', str(seed), '--work-dir', str(self.folder), '--resume']
        self.record.update(
            command=shlex.join(['bioattn', *self.training]).replace(f'{ROOT}/', ''), hardware=hardware(note)
        )

    def go(self) -> None:
        """Train and test, and write the record whenever there is something new; what is in it is not done again."""
        begun = latest_checkpoint(self.place / self.folder) is not None
        if not begun:
            self.record.update(processor_hours=0.0)  # of a run on another machine, which does not go on here
        if not begun or state_of(self.record) != TRAINED:
            self.record.update(metrics={}, tested=[])
            self.run('training.log', *self.training)
        # The paths are seen from the folder that the tools run in, as those of the data in the config are.
        checkpoint = str(self.folder / Path(latest_checkpoint(self.place / self.folder)).name)
        config = str(next((self.place / self.folder).glob('*.py')).relative_to(self.place))
        for kind in ('test_images', *self.row.tests):
            if kind not in self.record['tested']:
                metrics = self.record['metrics'] | getattr(self, kind)(config, checkpoint)
                self.write(metrics=metrics, tested=[*self.record['tested'], kind])
        self.write(state='finished')

    def run(self, log: str, *arguments: str) -> None:
        """Run a tool to its end, its output in a file.

        Raises:
            InputError: It failed.
        """
        (self.place / self.folder).mkdir(parents=True, exist_ok=True)
        path = self.place / self.folder / log
        print(f'{self.row.name}, seed {self.seed}: {arguments[0]}, see {path}', flush=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = dict(os.environ, PYTHONPATH=f'{ROOT}{os.pathsep}{os.environ.get("PYTHONPATH", "")}')
        with path.open('a', encoding='utf-8') as file:
            process = subprocess.Popen(
                [sys.executable, '-c', 'from bioattn_mm.cli.main import main; main()', *arguments],
                cwd=self.place,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            try:
                while process.poll() is None:
                    try:
                        process.wait(INTERVAL)
                    except subprocess.TimeoutExpired:
                        self.note_progress()
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                seconds = sum(getattr(after, key) - getattr(before, key) for key in ('ru_utime', 'ru_stime'))
                self.record['processor_hours'] = round(self.record['processor_hours'] + seconds / 3600, 4)
                self.note_progress()
        if process.returncode:
            lines = path.read_text(encoding='utf-8', errors='replace').strip().splitlines()
            reason = lines[-1] if lines else 'see its log'
            raise InputError(f'{self.row.name}, seed {self.seed}: {arguments[0]} failed: {reason}')

    def note_progress(self) -> None:
        """Write how far the training has come, if it has begun."""
        folder = self.place / self.folder
        configs = list(folder.glob('*.py'))
        try:
            log = TrainingLog.read(str(folder / 'steps.jsonl'))
        except InputError:
            return
        config = Config.fromfile(configs[0])
        losses, times = log.training['loss'], log.training['time']
        done = max(losses)
        self.write(
            iterations=done,
            of_iterations=config.train_cfg.max_iters,
            images_seen=done * config.train_dataloader.batch_size,
            hours=round(sum(times.values()) / 3600, 3),
            curve=[[step, round(value, 3)] for step, value in log.validation.get(self.metric, {}).items()],
            losses=[[step, round(losses[step], 4)] for step in sorted(losses)[:: max(1, len(losses) // MAX_POINTS)]],
        )

    def write(self, **entries: object) -> None:
        """Write the record with new entries."""
        self.record.update(entries)
        write_json(self.path, self.record, indent=None)

    def test_images(self, config: str, checkpoint: str, *options: str) -> dict[str, float]:
        """The metrics of the test set."""
        out = self.folder / 'test'
        self.run('test.log', 'test', config, checkpoint, '--work-dir', str(out), *options)
        written = max((self.place / out).glob('*/*.json'), key=lambda path: path.stat().st_mtime)
        metrics = read_json(written, 'test again')
        return {name: round(value, 4) for name, value in metrics.items() if 'time' not in name}

    def false_detections(self, config: str, checkpoint: str) -> dict[str, float]:
        """Draw the test images, truth beside prediction, and count objects that are not there or were not found."""
        drawn = self.folder / 'drawn'
        shutil.rmtree(self.place / drawn, ignore_errors=True)  # of a test that was interrupted
        self.test_images(config, checkpoint, '--show-dir', str(drawn))
        classes = self.confusion_of_classes(config, checkpoint)
        return {name: sum(each[name] for each in classes) for name in ('false_alarms', 'missed')}

    def thin_things(self, config: str, checkpoint: str) -> dict[str, float]:
        """The mean IoU of the classes whose objects are a few pixels wide."""
        classes = self.confusion_of_classes(config, checkpoint)
        return {THIN_MIOU: round(mean(each['IoU'] for each in classes if each['class'] in THIN_CLASSES), 4)}

    def confusion_of_classes(self, config: str, checkpoint: str) -> list[dict]:
        """What the confusion matrix of the test images says of each class."""
        out = self.folder / 'confusion'
        shutil.rmtree(self.place / out, ignore_errors=True)  # of a test that was interrupted
        self.run('confusion.log', 'confusion-matrix', config, checkpoint, '--out', str(out))
        return read_json(self.place / out / 'confusion_matrix.json', 'test again')['classes']

    def official(self, config: str, checkpoint: str) -> dict[str, float]:
        """What COCO's own packages make of the predictions, written in the official format of results."""
        out = self.folder / 'official'
        (self.place / out).mkdir(exist_ok=True)
        evaluators = Config.fromfile(self.place / config).test_evaluator
        names = [f'test_evaluator.{index}' for index in range(len(evaluators))]
        names = names if isinstance(evaluators, list) else ['test_evaluator']
        options = [f'{name}.outfile_prefix={out}/results' for name in names]
        self.test_images(config, checkpoint, '--cfg-options', *options)
        found = {}
        annotations = f'data/{self.row.data}/annotations'
        for results in sorted((self.place / out).glob('results.*.json')):
            kind = results.name.split('.')[1]
            of_kind = 'panoptic' if kind == 'panoptic' else 'instances'
            command = [str(ROOT / 'benchmarks/official_evaluation.py'), f'{annotations}/{of_kind}_train2017.json']
            command.append(str(results))
            if kind == 'panoptic':
                command += ['--segments', f'{annotations}/panoptic_train2017', f'{out}/results.panoptic']
            process = subprocess.run(
                [sys.executable, *command], cwd=self.place, stdout=subprocess.PIPE, text=True, check=False
            )
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
        out = self.folder / 'corruptions'
        severity = str(CORRUPTION_SEVERITY)
        config = self.sample(config)
        self.run('corruptions.log', 'robustness', config, checkpoint, '--severities', severity, '--out', str(out))
        (found,) = read_json(self.place / out / 'robustness.json', 'test again')['models']
        return {name: round(found[name], 4) for name in ('clean', 'mPC', 'rPC')} | found['corruptions']

    def sizes(self, config: str, checkpoint: str) -> dict[str, float]:
        """The accuracy at several sizes, with each of TransNeXt's position biases."""
        out = self.folder / 'sizes'
        shutil.rmtree(self.place / out, ignore_errors=True)  # of a test that was interrupted
        options = ('--sizes', *map(str, SIZES), '--modes', *BIAS_MODES, '--out', str(out))
        self.run('sizes.log', 'benchmark-extrapolation', self.sample(config), checkpoint, *options)
        with (self.place / out / 'table.csv').open(encoding='utf-8') as file:
            lines = list(csv.DictReader(file))
        return {at(int(line['size']), line['bias_mode']): round(float(line['value']), 4) for line in lines}


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
