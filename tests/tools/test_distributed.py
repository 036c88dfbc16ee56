"""tools/dist_*.sh and slurm_train.sh: arguments, two processes, and runs that go on when one or a machine leaves."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ..training.toy_run import assert_same
from .running import ROOT, InProcess, free_port, metrics_of_test, run_forked, run_script, scalars
from .small_images import small_training

CONFIG = str(ROOT / 'tests/tools/upernet_small.py')


@pytest.mark.slow
def test_two_processes_train_and_test_as_one_does(workplace: Path, tool: InProcess, monkeypatch) -> None:
    # Where there are fewer than two GPUs, the processes run on the CPU.
    if torch.cuda.device_count() < 2:
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    # 10 steps of 4 images are 6 rounds over 6 images: every process comes across both of the damaged ones.
    damaged = workplace / 'two_damaged'
    shutil.copytree(workplace / 'data/mini/ADEChallengeData2016', damaged)
    (damaged / 'images/training/ADE_train_00000002.jpg').write_bytes(b'no image')
    (damaged / 'annotations/training/ADE_train_00000005.png').write_bytes(b'no label map')
    run_forked(
        workplace, 'train.py', CONFIG, '--mini', '--work-dir', 'two', '--skip-bad-data', '--cfg-options',
        'train_dataloader.dataset.data_root=two_damaged', 'train_dataloader.dataset.indices=6',
        'train_cfg.max_iters=10', 'train_cfg.val_begin=1000', 'default_hooks.checkpoint.interval=10',
        'param_scheduler.0.end=3', 'default_hooks.logger.interval=1',
        world_size=2,
    )  # fmt: skip
    losses = [line['loss'] for line in scalars(workplace / 'two') if 'loss' in line]
    assert len(losses) == 10 and np.isfinite(losses).all()
    (log,) = (workplace / 'two').glob('*/*.log')  # of one of the processes
    lines = [line for line in log.read_text().splitlines() if 'skipped: ' in line]
    assert len(lines) == 2 + len([line for line in lines if 'bad training samples' in line])
    for name in ('the image two_damaged/images/training/ADE_train_00000002.jpg', 'ADE_train_00000005.png'):
        assert sum(name in line for line in lines) == 1
    assert lines[-1].endswith('bad training samples skipped: 2 of 6')

    # An odd number: one of the processes is given an image twice, and it must count once.
    arguments = (CONFIG, 'two/iter_10.pth', '--mini', '--cfg-options', 'test_dataloader.dataset.indices=5')
    tool(workplace, 'test.py', *arguments, '--work-dir', 'two/by_one')
    process = run_script(workplace, 'dist_test.sh', *arguments[:2], '2', *arguments[2:], '--work-dir', 'two/by_two')
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.count('\naAcc ') == 1
    by_one, by_two = (metrics_of_test(workplace / 'two' / name) for name in ('by_one', 'by_two'))
    assert by_one == by_two and by_one['mIoU'] > 0


@pytest.mark.parametrize(('script', 'needed'), [('dist_train.sh', 2), ('dist_test.sh', 3), ('slurm_train.sh', 3)])
def test_usage(script: str, needed: int, tmp_path: Path) -> None:
    usage = f'Usage: tools/{script} '
    process = run_script(tmp_path, script, *['x'] * (needed - 1))
    assert process.returncode == 2 and process.stderr.startswith(usage) and not process.stdout
    process = run_script(tmp_path, script, '--help')
    assert process.returncode == 0 and process.stdout.startswith(usage) and not process.stderr


def write_program(path: Path, text: str) -> None:
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `srun` and `python`, which are found first, print their arguments, one a line."""
    for name in ('srun', 'python'):
        write_program(tmp_path / name, 'printf "%s\\n" "$@"')
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    return tmp_path


def arguments_of(folder: Path, script: str, *args: str, **environment: str) -> list[str]:
    """What a script would run."""
    process = run_script(folder, script, *args, PYTHON='python', **environment)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def test_several_machines(shown: Path) -> None:
    environment = dict(NNODES='3', NODE_RANK='2', MASTER_ADDR='10.0.0.1', PORT='29555')
    launch = [
        '-m', 'bioattn_mm.cli.launch', '--nnodes=3', '--nproc-per-node=4', '--max-restarts=3', '--rdzv-backend=c10d',
        '--rdzv-endpoint=10.0.0.1:29555', '--rdzv-id=bioattn_mm', '--rdzv-conf=is_host=0,timeout=600',
    ]  # fmt: skip
    assert arguments_of(shown, 'dist_train.sh', 'a config.py', '4', '--amp', **environment) == [
        *launch, str(ROOT / 'tools/train.py'), 'a config.py', '--amp', '--launcher', 'pytorch',
    ]  # fmt: skip
    environment.update(NNODES='2:4', NODE_RANK='0', RESTARTS='5', JOIN_TIMEOUT='60')
    launch[2], launch[4], launch[-1] = '--nnodes=2:4', '--max-restarts=5', '--rdzv-conf=is_host=1,timeout=60'
    assert arguments_of(shown, 'dist_train.sh', 'config.py', '4', **environment)[: len(launch)] == launch
    launch[4] = '--max-restarts=0'  # there is nothing to go on from
    assert arguments_of(shown, 'dist_test.sh', 'config.py', 'x.pth', '4', '--tta', **environment) == [
        *launch, str(ROOT / 'tools/test.py'), 'config.py', 'x.pth', '--tta', '--launcher', 'pytorch',
    ]  # fmt: skip


NO_RUN = ('GPUS 0', 'GPUS -1', 'GPUS 1.5', 'NNODES 0', 'NNODES 4:2', 'NNODES all', 'RESTARTS -1')


@pytest.mark.parametrize('setting', NO_RUN)
def test_numbers_that_make_no_run(setting: str, shown: Path) -> None:
    name, value = setting.split()
    gpus, environment = (value, {}) if name == 'GPUS' else ('2', {name: value})
    process = run_script(shown, 'dist_train.sh', CONFIG, gpus, **environment)
    assert process.returncode == 2 and re.fullmatch(f"error: {name} must be .*, got '{value}'\n", process.stderr)


def test_slurm(shown: Path) -> None:
    for work_dir in (['runs/one'], []):
        arguments = arguments_of(
            shown, 'slurm_train.sh', 'gpu', 'a job', 'config.py', *work_dir, '--cfg-options', 'a=1',
            GPUS='16', CPUS_PER_TASK='7', SRUN_ARGS='--time=1:00:00 --qos=high',
        )  # fmt: skip
        assert arguments == [
            '--partition=gpu', '--job-name=a job', '--gres=gpu:8', '--ntasks=16', '--ntasks-per-node=8',
            '--cpus-per-task=7', '--kill-on-bad-exit=1', '--time=1:00:00', '--qos=high',
            'python', '-u', str(ROOT / 'tools/train.py'), 'config.py', *(f'--work-dir={name}' for name in work_dir),
            '--cfg-options', 'a=1', '--launcher=slurm',
        ]  # fmt: skip
    for number, environment in (('4', {}), ('2', dict(GPUS_PER_NODE='2'))):  # a part of a machine
        arguments = arguments_of(shown, 'slurm_train.sh', 'gpu', 'job', 'config.py', GPUS='4', **environment)
        assert arguments[2:5] == [f'--gres=gpu:{number}', '--ntasks=4', f'--ntasks-per-node={number}']


SRUN = """
printf '%s\\n' "$@" > arguments.txt
trap 'echo saved > checkpoint.txt; exit 143' TERM
touch started
while :; do sleep 0.01; done
"""


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGUSR1])
def test_a_preempted_job_goes_back_into_the_queue(number: signal.Signals, shown: Path) -> None:
    write_program(shown / 'srun', SRUN)
    write_program(shown / 'scontrol', 'cat checkpoint.txt && echo "$@" > requeued.txt')
    environment = {**os.environ, 'SLURM_JOB_ID': '17', 'SLURM_RESTART_COUNT': '1'}
    job = subprocess.Popen([ROOT / 'tools/slurm_train.sh', 'gpu', 'job', 'config.py'], cwd=shown, env=environment)
    while not (shown / 'started').exists():
        time.sleep(0.01)
    job.send_signal(number)
    assert job.wait() == 143
    assert (shown / 'requeued.txt').read_text() == 'requeue 17\n'
    assert '--resume' in (shown / 'arguments.txt').read_text().split()


def test_a_job_that_fails_does_not_go_back_into_the_queue(shown: Path) -> None:
    write_program(shown / 'srun', 'exit 5')
    process = run_script(shown, 'slurm_train.sh', 'gpu', 'job', 'config.py', SLURM_JOB_ID='17')
    assert process.returncode == 5 and not process.stderr


STEPS, INTERVAL = 9, 3
LAST = f'iter_{STEPS}.pth'
OPTIONS = (
    f'train_cfg.max_iters={STEPS}', 'train_cfg.val_begin=1000', f'default_hooks.checkpoint.interval={INTERVAL}',
    'default_hooks.logger.interval=1', 'train_dataloader.num_workers=1', 'train_dataloader.dataset.indices=8',
    *small_training(CONFIG),
)  # fmt: skip
Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(workplace: Path) -> Iterator[Start]:
    """Starts tools/dist_train.sh; its processes end with the test."""
    started = []
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES='', PYTHON=sys.executable, PORT=str(free_port()))

    def run(work_dir: str, processes: int, *arguments: str, config: str = CONFIG, **more: str) -> subprocess.Popen:
        log = workplace / f'{work_dir}_{len(started)}.txt'
        command = (ROOT / 'tools/dist_train.sh', config, str(processes), '--mini', '--work-dir', work_dir, *arguments)
        with log.open('w') as stream:
            process = subprocess.Popen(
                [*command, '--cfg-options', *OPTIONS], cwd=workplace, env=environment | more, stdout=stream,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        process.log = log
        started.append(process)
        return process

    yield run
    for process in started:
        cut_power(process)


def cut_power(process: subprocess.Popen) -> None:
    """Kill a call of the script and its training processes, which torchrun starts in sessions of their own."""
    if process.poll() is None:
        workers = workers_of(process)
        process.kill()
        for worker in workers:
            os.killpg(worker, signal.SIGKILL)
    process.wait()


def workers_of(process: subprocess.Popen) -> list[int]:
    """The training processes of a call of the script."""
    return [int(pid) for pid in Path(f'/proc/{process.pid}/task/{process.pid}/children').read_text().split()]


def wait_for_step(work_dir: Path, step: int, *processes: subprocess.Popen) -> None:
    """Wait until the log has a training step."""
    while not any(f'"step": {step}' in path.read_text() for path in work_dir.glob('*/vis_data/scalars.json')):
        for process in processes:
            assert process.poll() is None, process.log.read_text()[-3000:]
        time.sleep(0.05)


def finish(*processes: subprocess.Popen) -> None:
    """Wait for the end of calls of the script, which must succeed."""
    for process in processes:
        assert process.wait() == 0, process.log.read_text()[-3000:]


@pytest.fixture(scope='module')
def uninterrupted(workplace: Path) -> Path:
    """The last checkpoint of a run that nothing happens to."""
    arguments = (CONFIG, '--mini', '--work-dir', 'uninterrupted', '--cfg-options', *OPTIONS)
    run_forked(workplace, 'train.py', *arguments, world_size=2, CUDA_VISIBLE_DEVICES='')
    return workplace / 'uninterrupted' / LAST


@pytest.mark.parametrize(('how', 'options', 'said'), [
    pytest.param(signal.SIGKILL, (), '', marks=pytest.mark.slow),
    pytest.param(signal.SIGSTOP, ('--hang-timeout', '20'), 'waiting 20000ms', marks=pytest.mark.every_fault),
])  # fmt: skip
def test_a_process_dies_or_hangs(
    how: signal.Signals, options: tuple, said: str, workplace: Path, uninterrupted: Path, start: Start
) -> None:
    step, victim = random.randint(INTERVAL + 1, INTERVAL + 3), random.randint(0, 1)
    print(f'{how.name} to process {victim} after step {step}')
    run = start(how.name, 2, *options)
    wait_for_step(workplace / how.name, step, run)
    os.kill(workers_of(run)[victim], how)
    finish(run)
    assert said in run.log.read_text()
    assert_same(workplace / how.name / LAST, uninterrupted)


@pytest.mark.slow
def test_wrong_input_ends_at_once_without_a_traceback(start: Start) -> None:
    run = start('none', 1, config='none.py')
    assert run.wait() == 2
    text = run.log.read_text()
    assert text.count('error: ') == 1 and 'Traceback' not in text


@pytest.mark.every_fault
@pytest.mark.parametrize(('numbers', 'comes_back'), [('2', True), ('1:2', False)])
def test_a_machine_that_leaves(numbers: str, comes_back: bool, workplace: Path, uninterrupted: Path, start: Start):
    name, step = f'machines_{numbers[0]}', random.randint(INTERVAL + 1, INTERVAL + 3)
    print(f'killed: machine 1 after step {step}')
    machines = [start(name, 1, NNODES=numbers, NODE_RANK=str(rank)) for rank in range(2)]
    wait_for_step(workplace / name, step, *machines)
    cut_power(machines[1])
    if comes_back:
        finish(machines[0], start(name, 1, '--resume', NNODES=numbers, NODE_RANK='1'))
        assert_same(workplace / name / LAST, uninterrupted)
    else:  # the other one goes on, with other batches
        finish(machines[0])
        assert (workplace / name / LAST).exists()
