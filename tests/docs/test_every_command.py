"""Every block of README.md, CONTRIBUTING.md and docs/ runs, in the order of its page, in a folder as a reader has it.

A block runs as it stands, but for those that the table below has a row for: how it is run, or why it is not here.
`make test-docs` runs them all.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from .blocks import pages, read_blocks
from .place import Place

# What stands for the words of the pages that a reader replaces, and the checkpoints that a page does not make.
WORDS = {
    r'\bCONFIG\b': 'configs/transnext/upernet_micro_ade20k.py',
    r'\bCHECKPOINT\b': 'upernet_micro.pth',
    # The models of docs/results.md and their data, which not everybody has.
    r'work_dirs/(?:results/runs/cifar10-[\w-]+|cifar10_\w+_cifar10)/(?:sample/)?(cifar10_\w+\.py)': (
        r'benchmarks/results/configs/\1'
    ),
    r'work_dirs/results/runs/camvid-upernet-[\w-]+/upernet\w*\.py': 'configs/transnext/upernet_micro_ade20k.py',
    r'work_dirs/results/runs/camvid-upernet-[\w-]+/iter_\d+\.pth': 'upernet_micro.pth --mini',
    r'work_dirs/results/data/camvid/images/val': 'data/mini/ADEChallengeData2016/images/validation',
    r'(?<=data_root=)work_dirs/results\b': 'data/mini/ADEChallengeData2016',
}
CHECKPOINTS = {
    'upernet_micro.pth': 'configs/transnext/upernet_micro_ade20k.py',
    'upernet_tiny.pth': 'configs/transnext/upernet_tiny_ade20k.py',
    'mask_rcnn_tiny.pth': 'configs/transnext/mask_rcnn_tiny_coco.py',
}


@dataclass(frozen=True)
class Run:
    """A block that runs: bash line by line with what `place.additions` puts behind it, Python as it stands."""

    words: dict[str, str] = field(default_factory=dict)  # patterns and what stands for them, besides `WORDS`
    but: dict[str, str] = field(default_factory=dict)  # what is in lines that are left out, and why
    given: tuple[str, ...] = ()  # files that are there before, besides those that `Place.provide` makes
    alone: bool = False  # in a folder of its own instead of that of the blocks above


INSTALLS = 'it installs packages, as .ci/run and tests/package/check.sh do'
SETS_UP = {'make setup': 'it installs packages, as .ci/run does'}
MAKES = 'make installs first, as .ci/run does; make demo trains and tests as the first block of docs/training.md'
# Two processes in place of eight.
TWO = {r'\b8\b': '2'}

# A page's blocks by the heading above them; the second block under a heading is 'HEADING, 2'. A row that stands for a
# whole page is for all of its blocks. Those without a row run as they stand.
TABLE: dict[str, Run | str | dict[str, Run | str]] = {
    'README.md': {
        'Install': Run(but=SETS_UP),
        'Install, 2': MAKES,
        'A backbone in three libraries': Run(
            given=('hf://DaiShiResearch/transnext-tiny-224-1k/transnext_tiny_224_1k.pth',)
        ),
    },
    'CONTRIBUTING.md': {'Set up': INSTALLS, 'Tests': 'it is the test suite'},
    'docs/adding_a_backbone.md': 'tests/toy/test_toy_vit.py runs it',
    'docs/any_model.md': 'tests/hosts/test_any_model.py runs it',
    'docs/docker.md': 'it needs Docker; tests/package/test_metadata.py reads the Dockerfiles',
    'docs/export.md': {
        'Export': Run(but=SETS_UP),
        'Without PyTorch': 'it installs packages; tests/package/check.sh does it',
        'Without PyTorch, 2': 'tests/runtime/test_model.py runs it',
    },
    'docs/gallery.md': {
        'Analysis gallery': 'it runs all blocks of the page',
        'The models': 'it trains for an hour, on data that not everybody has',
        'VARS, figure 6': Run(words={r'\S+data_root=work_dirs/results': 'launcher=none --mini'}),
    },
    'docs/get_started.md': {
        'Install': INSTALLS,
        'From source': Run(but=SETS_UP),
        'From source, 2': INSTALLS,
        'Two commands': MAKES,
        'mim': 'it installs packages; tests/package/check.sh does it',
    },
    'docs/multi_gpu.md': {
        'Multi-GPU and faults': Run(
            words={r'(?<=ade20k.py )CHECKPOINT': 'upernet_tiny.pth', **TWO},
            but={'NNODES=2': 'two machines', 'GPUS=16': 'Slurm; tests/tools/test_distributed.py has a stand-in'},
        ),
        'Models too large for one GPU': Run(words={'upernet_base': 'upernet_micro', **TWO}),
        'Models too large for one GPU, 2': Run(
            words={r'work_dirs/\S+160000\.pth': 'upernet_tiny.pth'}, given=('upernet_tiny.pth',)
        ),
        'Interruptions': 'it needs Slurm; tests/tools/test_distributed.py has a stand-in',
    },
    'docs/openmmlab.md': {
        'Inference': Run(given=('mask_rcnn_tiny.pth',)),
        'With mmdet, mmseg and mmpretrain': Run(
            but={
                'browse_dataset': 'it opens windows; tests/hosts runs it without',
                'torchrun': 'mmengine itself takes a GPU for each process; our tools do not',
            },
        ),
    },
    'docs/operators.md': {'Operators and backends, 2': 'it takes minutes and nvcc; .ci/run does it where one is'},
    'docs/other_libraries.md': 'tests/hosts/test_other_libraries.py runs it',
    'docs/own_data.md': 'tests/tools/test_own_data.py runs it',
    'docs/position_bias.md': {'Position bias at any size': Run(words={r'(?<=\w.py )CHECKPOINT': 'upernet_tiny.pth'})},
    'docs/predict.md': {
        # tests/tools/test_predict.py has a video.
        'Predict': Run(words={r"'clips/\S+": ''}, but={'exported': 'docs/export.md does it'}),
        'Predict, 2': Run(given=('work_dirs/transnext/upernet_tiny_ade20k_mini/iter_200.pth',)),
        'Formats': Run(given=('mask_rcnn_tiny.pth',)),
        "The authors' weights": Run(alone=True),
        'A page in the browser': 'it serves until Ctrl-C; tests/page/test_page.py starts it',
    },
    'docs/results.md': 'it trains for hours; tests/docs/test_results.py compares the page with its records',
    'docs/three_ways.md': 'tests/docs/test_pages.py runs it',
    'docs/training.md': {
        'Data': 'it needs ADE20K; tests/data/test_ade20k.py converts a drawn one',
        'Weights': Run(alone=True),
        'ImageNet': Run(words={'--test-set r': '--test-set val'}),  # of ImageNet-R there is no miniature
        'ImageNet, 2': Run(alone=True),
    },
    'docs/troubleshooting.md': {'Colab': 'it is for a machine of Colab'},
}

BLOCKS = {(block.page, block.name): block for page in pages() for block in read_blocks(page)}
ROWS: dict[tuple[str, str], Run | str] = {key: Run() for key in BLOCKS}
for page, rows in TABLE.items():
    rows = rows if isinstance(rows, dict) else {name: rows for of, name in BLOCKS if of == page}
    ROWS.update({(page, name): row for name, row in rows.items()})
RUN = [key for key in BLOCKS if isinstance(ROWS[key], Run)]


def test_rows_are_of_blocks_that_the_pages_have() -> None:
    """So is what a row replaces or leaves out."""
    assert not set(TABLE) - {page for page, _ in BLOCKS}, 'pages without blocks'
    assert ROWS.keys() == BLOCKS.keys()
    for key in RUN:
        absent = [
            word
            for word in (*ROWS[key].words, *map(re.escape, ROWS[key].but))
            if not re.search(word, BLOCKS[key].text)
        ]
        assert not absent, f'{BLOCKS[key]}: {absent}'


def with_words(text: str, row: Run) -> str:
    """What stands for the words that the reader replaces."""
    for word, stand_in in {**row.words, **WORDS}.items():
        text = re.sub(word, stand_in, text)
    return text


@pytest.fixture(scope='module')
def place_of(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Place]:
    """The folder of a page, one for all of its blocks but those that run alone."""
    kept = tmp_path_factory.mktemp('kept')

    @cache
    def make(name: str) -> Place:
        return Place(tmp_path_factory.mktemp(re.sub(r'\W+', '_', name)), workplace, kept)

    return lambda page, name: make(page + name * ROWS[page, name].alone)


@pytest.mark.every_command
@pytest.mark.parametrize(('page', 'name'), RUN)
def test_every_command(page: str, name: str, place_of: Callable[[str, str], Place]) -> None:
    place, block, row = place_of(page, name), BLOCKS[page, name], ROWS[page, name]
    place.provide(' '.join(row.given))
    for path, config in CHECKPOINTS.items():
        if path in row.given or path in with_words(block.text, row) and path not in block.text:
            place.provide_checkpoint(path, config)
    if block.language == 'bash':
        for line in block.lines():
            if not any(part in line for part in row.but):
                print(place.run_line(with_words(line, row)))
    elif block.file:
        (place.folder / block.file).write_text(block.text)
    else:
        # The page's earlier Python has run in the same interpreter.
        python = [key for key in BLOCKS if key[0] == page and BLOCKS[key].language == 'python']
        python = [BLOCKS[key].text for key in python[: python.index((page, name)) + 1] if not BLOCKS[key].file]
        print(place.run_python(with_words('\n'.join(python), row)))
