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


def test_commands_run_once_and_their_drawings_are_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gallery: SimpleNamespace, capsys: pytest.CaptureFixture
) -> None:
    docs = tmp_path / 'docs'
    docs.mkdir()
    (docs / 'page.md').write_text(
        '![A picture](pictures/one.png)\n\n```bash\npython train.py --resume\n'
        'python draw.py --size 30 \\\n    --out work_dirs/gallery/one  # a comment\n```\n\n'
        '```bash\npython draw.py --size 40 --out elsewhere\n```\n'
        '![Of a model](pictures/model.png)\n\n```bash\n'
        'python draw.py --size 40 work_dirs/results/model.pth --out work_dirs/gallery/model\n```\n'
    )
    (tmp_path / 'draw.py').write_text(
        'import sys\nfrom pathlib import Path\nimport numpy as np\nfrom PIL import Image\n'
        'folder = Path(sys.argv[-1])\nfolder.mkdir(parents=True)\nside = int(sys.argv[2])\n'
        'values = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)\n'
        "Image.fromarray(values).save(folder / 'drawing.png')\n"
    )
    main = gallery.main.__globals__
    monkeypatch.setitem(main, 'DOCS', docs)
    monkeypatch.setitem(main, 'PAGES', ('page.md',))
    monkeypatch.setattr(sys, 'argv', ['make_gallery.py'])
    gallery.main()
    with Image.open(docs / 'pictures' / 'one.png') as picture:
        assert picture.mode == 'P' and picture.size == (30, 30)
    assert not (tmp_path / 'elsewhere').exists()
    assert 'model.png stays as it is: no work_dirs/results/model.pth' in capsys.readouterr().out
    assert not (docs / 'pictures' / 'model.png').exists()
    (tmp_path / 'draw.py').write_text('raise SystemExit(1)\n')
    gallery.main()  # the folder is there: the command is not run again
    (docs / 'page.md').write_text(
        '![One](pictures/one.png)\n\n```bash\npython draw.py --size 30 --out work_dirs/gallery/one\n```\n'
        '![Two](pictures/two.png)\n\n```bash\npython tools/train.py --resume\n'
        'python draw.py --size 30 --out work_dirs/gallery/two\n```\n'
    )
    assert [step.names for step in gallery.steps_of(docs / 'page.md')] == [['one'], ['two'], ['two']]
    monkeypatch.setattr(sys, 'argv', ['make_gallery.py', 'other'])
    with pytest.raises(SystemExit, match='no picture other: expected some of one two'):
        gallery.main()

    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / 'noise.png')
    monkeypatch.setitem(main, 'MAX_BYTES', 2000)
    with pytest.raises(ValueError, match='kB, more than 2 kB'):
        gallery.shrink(tmp_path / 'noise.png', docs / 'noise.png')
    (docs / 'page.md').write_text('![A picture](two.png)\n')
    with pytest.raises(ValueError, match='no command to work_dirs/gallery for two'):
        gallery.steps_of(docs / 'page.md')
