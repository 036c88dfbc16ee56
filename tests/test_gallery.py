"""The pictures of the pages and the commands that draw them; the arguments of the backbones."""

import inspect
import re
import runpy
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import bioattn_mm

BACKBONES = ('TransNeXt', 'ConViT', 'PerViT', 'GABViT', 'GABSwin', 'VARS')


@pytest.fixture(scope='module')
def gallery(root: Path) -> SimpleNamespace:
    """The script docs/make_gallery.py."""
    return SimpleNamespace(**runpy.run_path(str(root / 'docs' / 'make_gallery.py')))


def test_every_picture_is_there_and_has_its_command(root: Path, gallery: SimpleNamespace) -> None:
    pictures = []
    for page in gallery.PAGES:
        for step in gallery.steps_of(root / 'docs' / page):
            python, script, *arguments = step.command
            assert python == 'python' and (root / script).is_file()
            for word in arguments:
                assert (root / word).is_file() or not word.startswith('configs/'), shlex.join(step.command)
            if step.picture:
                pictures.append(step.picture)
                assert 1000 < step.picture.stat().st_size <= gallery.MAX_BYTES
    assert len(pictures) == len(set(pictures)) > 12
    on_disk = {*(root / 'docs' / 'systems').glob('*.png'), *(root / 'docs' / 'gallery').glob('*.png')}
    assert on_disk | {root / 'docs' / 'attention.png'} == set(pictures)


@pytest.mark.parametrize('name', BACKBONES)
def test_every_argument_is_in_the_reference(name: str) -> None:
    """The API reference is made of the docstrings of a backbone and, for what these leave out, of its bases."""
    backbone = getattr(bioattn_mm, name)
    text = '\n'.join(inspect.getdoc(base) or '' for base in backbone.__mro__[:-1])
    documented = re.findall(r'^    (\w+): ', text, re.MULTILINE)
    assert not inspect.signature(backbone).parameters.keys() - set(documented)


PAGE = """\
![Of noise](pictures/one.png)

```bash
python tools/train.py --resume
python draw.py --size 30 \\
    --out work_dirs/gallery/one  # a comment
```

![Of a model](pictures/model.png)

```bash
python draw.py work_dirs/results/model.pth --out work_dirs/gallery/model
```
"""


def test_commands_run_once_and_their_drawings_are_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gallery: SimpleNamespace, capsys: pytest.CaptureFixture
) -> None:
    page, commands = tmp_path / 'docs/page.md', []
    page.parent.mkdir()
    page.write_text(PAGE)

    def run(command: list[str]) -> None:
        commands.append(command[1])
        if '--out' in command:
            (tmp_path / command[-1]).mkdir(parents=True)
            noise = np.random.default_rng(0).integers(0, 255, (30, 30, 3), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / command[-1] / 'drawing.png')

    for name, value in dict(DOCS=page.parent, PAGES=('page.md',), run=run).items():
        monkeypatch.setitem(gallery.main.__globals__, name, value)
    monkeypatch.setattr(sys, 'argv', ['make_gallery.py'])
    gallery.main()
    gallery.main()  # the folder is there: only the training, which ends at once, is run again
    assert commands == ['tools/train.py', 'draw.py', 'tools/train.py']
    assert 'model.png stays as it is: no work_dirs/results/model.pth' in capsys.readouterr().out
    with Image.open(page.parent / 'pictures/one.png') as picture:
        assert picture.mode == 'P' and picture.size == (30, 30)
