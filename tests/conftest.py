"""Fixtures shared by all tests."""

import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from bioattn_mm.data.mini import make_mini_datasets

from .needs import apply_needs, find_chromium
from .tools.running import InProcess, LoaderWorkers, forget_runs
from .training.ranks import make_runs_quick

ROOT = Path(__file__).parents[1]
# Images of each dataset of the workplace, half as many as the tools draw by themselves.
NUM_TRAIN, NUM_VAL = 120, 20


# The dearest files, most of which run trainings, by what they cost; but the three after the first need no miniatures,
# which that one draws, and for which other workers would wait.
LONGEST = """
    every_config printed cuda_kernels configs train_and_test checkpoints strategies published_settings notebooks
    openmmlab own_data imagenet backbones predictor robustness computation distributed registry convert_checkpoint
    shards main table inspect_data channels recorded_features
""".split()

# A shell ignores SIGINT in what it starts in the background, and a training leaves it so; tests send it to trainings.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Files and folders beside git's before the tests, and new ones after them.
CACHES = ('__pycache__', '.pytest_cache', '.ruff_cache')
BEFORE, LEFT = pytest.StashKey[set](), pytest.StashKey[list]()


def files_beside_gits(folder: Path) -> set[str]:
    """Files and folders that git does not track, ignored ones, too, without caches; none where there is no git."""
    command = ['git', 'status', '--porcelain', '--ignored', '-z']
    try:
        listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return set()
    names = {line[3:] for line in listed.split('\0') if line.startswith(('??', '!!'))}
    return {name for name in names if Path(name).name not in CACHES}


def pytest_sessionstart(session: pytest.Session) -> None:
    # The process that the workers of pytest-xdist report to looks, once for all of them.
    if not hasattr(session.config, 'workerinput'):
        session.config.stash[BEFORE] = files_beside_gits(ROOT)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if BEFORE in session.config.stash:
        session.config.stash[LEFT] = left = sorted(files_beside_gits(ROOT) - session.config.stash[BEFORE])
        if left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name in config.stash.get(LEFT, []):
        terminalreporter.write_line(f'FAILED: left behind in the checkout: {name}', red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = 'run only tests that need this, such as GPU (see tests/needs.py); may be repeated'
    parser.addoption('--needs', action='append', default=[], metavar='NAME', help=help_text)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No garbage is collected while the files of tests import the libraries, which would take seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first: the short ones then let parallel workers end at about the same time."""
    wanted = set(config.getoption('--needs'))
    if wanted:
        items[:] = [item for item in items if any(wanted & set(mark.args) for mark in item.iter_markers('needs'))]
    for item in items:
        apply_needs(item)
    ranks = {f'test_{name}.py': rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """The tests of a file run in one process, and so do all of the configs, whose models take long to make."""
    from xdist.scheduler import LoadFileScheduling

    class LoadSharedScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return 'configs' if nodeid.startswith('tests/configs/') else super()._split_scope(nodeid)

    return LoadSharedScheduling(config, log)


@pytest.fixture(autouse=True, scope='session')
def quick_runs() -> None:
    make_runs_quick()


@pytest.fixture(autouse=True)
def fresh_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same seed; no run writes to the files of an earlier test's; no workers of data loaders outlive a test."""
    torch.manual_seed(0)
    forget_runs()
    LoaderWorkers.watch(monkeypatch)
    yield
    LoaderWorkers.end()


@pytest.fixture(scope='session')
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope='session')
def workplace(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configs and miniature data, in which the tools run; parallel workers draw the data once."""
    folder = tmp_path_factory.mktemp('workplace')
    (folder / 'configs').symlink_to(root / 'configs')
    sizes = dict(num_train=NUM_TRAIN, num_val=NUM_VAL, progress=False)
    if 'PYTEST_XDIST_WORKER' in os.environ:
        drawn = tmp_path_factory.getbasetemp().parent / 'miniatures'  # in the folder of all workers
        with FileLock(f'{drawn}.lock'):
            make_mini_datasets(drawn, **sizes)
        shutil.copytree(drawn, folder / 'data/mini')
    else:
        make_mini_datasets(folder / 'data/mini', **sizes)
    return folder


@pytest.fixture(scope='module')
def browser() -> Iterator[object]:
    """Playwright's `Browser`: headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium refuses to start as root with its sandbox.
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=['--no-sandbox'])
        yield browser
        browser.close()


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process alone."""
    monkeypatch.setenv('LOCAL_RANK', '0')
    torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def bfloat16_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed precision is tested on CPUs, too, that emulate it, and that the tools refuse."""
    monkeypatch.setattr('bioattn_mm.training.amp.cpu_has_bfloat16', lambda: True)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> InProcess:
    """Runs tools in the test's own process."""
    return InProcess(monkeypatch, capsys)
