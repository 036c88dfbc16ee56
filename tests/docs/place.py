"""A folder in which the commands of a page run, as on the machine of a reader who has a checkout and the data.

Miniatures lie where the real data do. Files that a command names and that nothing has written are made when it comes.
Nothing is downloaded: in the cache of huggingface_hub lie files like the authors', with made-up values.
"""

import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import timm
import torch
from mmdet.datasets import CocoDataset
from PIL import Image

from .. import parity
from ..own_folders import draw, write_coco_folder, write_images
from ..systems.timm_models.classifiers import released_file
from ..tools.random_weights import random_checkpoint
from ..tools.running import free_port, make_user_folder
from ..tools.small_images import NO_WORKERS, small_images, small_training
from .blocks import ROOT

# Which tool a line runs, and with which config.
TRAINS, TESTS = r'(\b|_)train(\.py|\.sh)? ', r'(\b|_)test(\.py|\.sh)? '
CONFIG = re.compile(r'[\w./-]*?(?P<kind>upernet|mask_rcnn|dino|mask2former|in1k|cifar10)[\w-]*(\.py)?')
# These options are put behind other tools, which then take few images.
SHORTER = {
    r'\b(erf|locality|attention_segmentation)\.py ': '--max-images 2',
    r'\b(export(\.py)?|robustness\.py) ': '--cfg-options test_dataloader.dataset.indices=2',
    r'\bbenchmark_extrapolation\.py ': '--sizes 64 96 --cfg-options test_dataloader.dataset.indices=2',
}
MINUTES = 10  # that one command may take

# Heads of random weights score every box below the threshold.
SMALL_MODEL = {'mask_rcnn': ['model.test_cfg.rcnn.score_thr=0.0', 'model.test_cfg.rcnn.max_per_img=10']}
CLASSIFIERS = ('in1k', 'cifar10')


def additions(line: str) -> list[str]:
    """What is put behind a command to make it short, on few and small images: the one rule for every command.

    Of options that are given twice the tools take the last, and `--cfg-options` adds up.
    """
    config = next(filter(None, map(CONFIG.fullmatch, shlex.split(line))), None)
    kind = config and config['kind']
    words, options = [], []
    if re.search(TRAINS, line) and config:
        by_iteration = '--mini' in line or kind in ('upernet', 'mask2former', 'cifar10') and '--epochs' not in line
        options = [*NO_WORKERS]
        if by_iteration:
            length = f'train_cfg.max_iters={4 if "--resume" in line else 2}'
            options += [length, 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2']
        else:
            options += ['train_cfg.max_epochs=1', 'train_dataloader.dataset.indices=4']
        if '--mini' not in line:
            options += ['model.backbone.init_cfg=None']
        if kind in CLASSIFIERS:
            options += ['train_dataloader.batch_size=2', 'val_dataloader.dataset.indices=2']
        elif '--mini' not in line:
            options += [*small_training(config[0]), *small_images('val', 2)]
        words = ['--epochs', '1'] if '--epochs' in line else []
    elif re.search(TESTS, line):
        few = small_images('test', 2)
        options = few[:1] if kind in CLASSIFIERS else [*few, *NO_WORKERS]
        if '--tta' in line:
            scale = 'tta_pipeline.1.transforms.0.{}.scale=({},96)'
            options += [scale.format(index, 96 + 16 * index) for index in range(6)]
    else:
        words = next((words.split() for pattern, words in SHORTER.items() if re.search(pattern, line)), [])
    return [*words, *(['--cfg-options', *options, *SMALL_MODEL.get(kind, ())] if options else [])]


class Place:
    """The folder of one page; miniatures are those of `workplace`, and `kept` has what is made once for all pages."""

    def __init__(self, folder: Path, workplace: Path, kept: Path) -> None:
        self.folder, self.kept = folder, kept
        make_user_folder(folder, workplace)
        (folder / 'data/mini').symlink_to(workplace / 'data/mini')
        for name in ('tools', 'benchmarks', 'docs'):
            (folder / name).symlink_to(ROOT / name)
        (folder / '.venv').symlink_to(sys.prefix)
        self.environment = {
            **os.environ,
            'PATH': f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}',
            'PYTHON': sys.executable,
            'HF_HUB_CACHE': str(kept / 'hub'),
            'HF_HUB_OFFLINE': '1',
            'https_proxy': 'http://127.0.0.1:9',
            'MPLBACKEND': 'Agg',
        }

    def run_line(self, line: str) -> str:
        """Run a line of bash, made short by `additions`."""
        self.provide(line)
        return self._run('bash', '-euo', 'pipefail', '-c', f'{line} {shlex.join(additions(line))}')

    def run_python(self, code: str) -> str:
        """Run Python in a new interpreter."""
        self.provide(code)
        return self._run(sys.executable, '-c', code)

    def _run(self, *words: str) -> str:
        # For tools/*.sh and for torchrun.
        environment = {**self.environment, **dict.fromkeys(('PORT', 'PET_MASTER_PORT'), str(free_port()))}
        process = Popen(
            words, cwd=self.folder, env=environment, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
        )
        try:
            out, errors = process.communicate(timeout=60 * MINUTES)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
            raise
        assert process.returncode == 0, f'{words[-1]}\n{out[-1000:]}\n{errors[-6000:]}'
        return out

    def provide(self, text: str) -> None:
        """Make the files that a line or some code names, where they are not there."""
        for pattern, make in READERS_FILES.items():
            for match in re.finditer(pattern, text):
                path = self.folder / match[0]
                if not path.exists():
                    make(path)
        for match in re.finditer(r'work_dirs/(\w+/[\w-]+?)(_mini)?/(iter|epoch)_\d+\.pth', text):
            self.provide_checkpoint(match[0], f'configs/{match[1]}.py')
        for match in re.finditer(r'work_dirs/(results/runs/)?(cifar10[-_]\D+?)[-_](\d+-)?\w+/iter_\d+\.pth', text):
            self.provide_checkpoint(match[0], f'benchmarks/results/configs/{match[2].replace("-", "_")}.py')
        for match in re.finditer(r'hf://([\w-]+/[\w-]+)(?:@\w+)?/([\w.-]+)', text):
            self._provide_file_of_hub(*match.groups())

    def provide_checkpoint(self, name: str, config: str) -> None:
        """The checkpoint of a whole training: what the shortened one wrote, else random weights."""
        path = self.folder / name
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        written = sorted(path.parent.glob('*_[0-9].pth'))
        made = self.kept / f'{Path(config).stem}.pth'
        if not written and not made.exists():
            random_checkpoint(made, str(ROOT / config))
        path.symlink_to(written[-1] if written else made)
        if not written:
            (path.parent / 'last_checkpoint').write_text(str(path))  # as mmengine does

    def _provide_file_of_hub(self, repository: str, name: str) -> None:
        """A file in the cache of huggingface_hub."""
        folder = self.kept / 'hub' / f'models--{repository.replace("/", "--")}'
        path = folder / 'snapshots' / HUB_COMMIT / name
        if not path.exists():
            path.parent.mkdir(parents=True)
            (folder / 'refs').mkdir()
            (folder / 'refs/main').write_text(HUB_COMMIT)
            authors_file(path)


HUB_COMMIT = '0' * 40


def authors_file(path: Path) -> None:
    """ImageNet weights, or a whole detector of TransNeXt's authors, by their name for the file."""
    if 'coco' not in path.name:
        released_file(path, path.stem.removesuffix('_224_1k'))
        return
    head, size = re.match(r'(mask_rcnn|dino_\dscale)\w*?_transnext_([a-z]+)', path.name).groups()
    weights = {name: torch.rand(shape) for name, shape in parity.released_heads(head, size).items()}
    backbone = parity.released_state_dict(f'transnext_{size}')
    weights.update({f'backbone.{name}': value for name, value in backbone.items()})
    torch.save(dict(state_dict=weights, meta=dict(CLASSES=CocoDataset.METAINFO['classes'])), path)


def small_cifar10(path: Path) -> None:
    """A folder as benchmarks/results.py unpacks CIFAR-10, of other classes."""
    mini = path.parents[3] / 'data/mini/imagenet'
    for split in ('train', 'val', 'test'):
        shutil.copytree(mini / split.replace('test', 'val'), path / split)


def small_bccd(path: Path) -> None:
    """A folder as benchmarks/results.py unpacks BCCD, of other classes."""
    mini = path.parents[3] / 'data/mini/coco'
    (path / 'annotations').mkdir(parents=True)
    for split in ('train', 'val'):
        shutil.copytree(mini / f'{split}2017', path / split)
        annotations = f'annotations/instances_{split}'
        shutil.copy(mini / f'{annotations}2017.json', path / f'{annotations}.json')


# What a reader has, by patterns of its name.
READERS_FILES = {
    r'\bstreet\.jpg': lambda path: Image.fromarray(draw(600)[0]).save(path),
    r'\b(holiday|new_images)\b': lambda path: write_images(path, range(500, 502)),
    r'\bwork_dirs/results/data/cifar10\b': small_cifar10,
    r'\bwork_dirs/results/data/bccd\b': small_bccd,
    r'\bparts\b': lambda path: write_coco_folder(path, range(24)),
    r'(?<![\w/])(transnext|convit|pervit|vars_rvt)_\w+\.pth': authors_file,
    r'(?<![\w/])(vit_relpos|deit)_\w+\.pth': lambda path: torch.save(timm.create_model(path.stem).state_dict(), path),
}
