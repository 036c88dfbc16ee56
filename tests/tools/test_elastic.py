"""Runs that go on when a process dies or a machine, a call of tools/dist_train.sh, leaves and comes back."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..training.toy_run import largest_difference
from .running import ROOT, free_port, run_forked
from .small_images import small_training

CONFIG = str(ROOT / 'tests/tools/upernet_small.py')
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


@pytest.mark.slow
def test_a_killed_process(workplace: Path, uninterrupted: Path, start: Start) -> None:
    step, victim = random.randint(INTERVAL + 1, INTERVAL + 3), random.randint(0, 1)
    print(f'killed: process {victim} after step {step}')
    run = start('killed', 2)
    wait_for_step(workplace / 'killed', step, run)
    os.kill(workers_of(run)[victim], signal.SIGKILL)
    finish(run)
    assert largest_difference(workplace / 'killed' / LAST, uninterrupted) == 0


@pytest.mark.slow
def test_wrong_input_ends_at_once_without_a_traceback(start: Start) -> None:
    run = start('none', 1, config='none.py')
    assert run.wait() == 2
    text = run.log.read_text()
    assert text.count('error: ') == 1 and 'Traceback' not in text


@pytest.mark.every_fault
def test_a_process_that_hangs(workplace: Path, uninterrupted: Path, start: Start) -> None:
    config = workplace / 'hangs.py'
    config.write_text(
        f'_base_ = {CONFIG!r}\ncustom_imports = dict(imports=["tests.tools.hanging"])\n'
        f'custom_hooks = [*_base_.custom_hooks, dict(type="HangOnceHook", after={INTERVAL + 2})]\n'
    )
    run = start('hung', 2, '--hang-timeout', '20', config=str(config))
    finish(run)
    assert 'Timed out waiting 20000ms' in run.log.read_text()
    assert largest_difference(workplace / 'hung' / LAST, uninterrupted) == 0


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
        assert largest_difference(workplace / name / LAST, uninterrupted) == 0
    else:  # the other one goes on, with other batches
        finish(machines[0])
        assert (workplace / name / LAST).exists()
