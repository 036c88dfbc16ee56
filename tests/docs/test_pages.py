"""Pictures and the commands that draw them, the code of three_ways.md, and the messages of troubleshooting.md."""

import ast
import inspect
import itertools
import re
import runpy
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from mmengine.config import Config
from mmengine.registry import MODELS as OPENMMLAB
from PIL import Image
from timm.models import is_model

import bioattn_mm
from bioattn_mm import registry
from bioattn_mm.systems.timm_models.timm_registry import MODELS
from tests.systems.timm_models.classifiers import released_file

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def gallery() -> SimpleNamespace:
    """The script docs/make_gallery.py."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / 'docs' / 'make_gallery.py')))


def test_every_picture_is_there_and_has_its_command(gallery: SimpleNamespace) -> None:
    pictures = []
    for page in gallery.PAGES:
        for step in gallery.steps_of(ROOT / 'docs' / page):
            python, script, *arguments = step.command
            assert python == 'python' and (ROOT / script).is_file()
            for word in arguments:
                assert (ROOT / word).is_file() or not word.startswith('configs/'), shlex.join(step.command)
            if step.picture:
                pictures.append(step.picture)
                assert 1000 < step.picture.stat().st_size <= gallery.MAX_BYTES
    assert len(pictures) == len(set(pictures)) > 12
    on_disk = {*(ROOT / 'docs' / 'systems').glob('*.png'), *(ROOT / 'docs' / 'gallery').glob('*.png')}
    assert on_disk | {ROOT / 'docs' / 'attention.png'} == set(pictures)


@pytest.mark.parametrize('name', ['TransNeXt', 'ConViT', 'PerViT', 'GABViT', 'GABSwin', 'VARS'])
def test_every_argument_is_in_the_reference(name: str) -> None:
    """The API reference is made of the docstrings of a backbone and, for what these leave out, of its bases."""
    backbone = getattr(bioattn_mm, name)
    text = '\n'.join(inspect.getdoc(base) or '' for base in backbone.__mro__[:-1])
    documented = re.findall(r'^    (\w+): ', text, re.MULTILINE)
    assert not inspect.signature(backbone).parameters.keys() - set(documented)


def test_every_name_of_a_config_is_in_the_reference() -> None:
    text = (ROOT / 'docs' / 'api.md').read_text()
    names = set(re.findall(r'^::: \S+\.(\w+)$', text, re.MULTILINE))
    for kind in filter(lambda value: isinstance(value, registry.LateRegistry), vars(registry).values()):
        kind.import_from_location()
        late = [kind.get(name) for name in kind.late]
        ours = {name for name, each in kind.module_dict.items() if each.__module__.startswith('bioattn_mm.')}
        assert None not in late and not ours - names, f'{kind.name}: {ours - names}'


PAGE = """\
![Of noise](one.png)
![Of a model](model.png)
```bash
python tools/train.py --resume
python draw.py --size 30 \\
    --out work_dirs/gallery/one  # a comment
python draw.py work_dirs/results/model.pth --out work_dirs/gallery/model
```
"""


def test_commands_run_once_and_their_drawings_are_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gallery: SimpleNamespace, capsys: pytest.CaptureFixture
) -> None:
    docs, commands = tmp_path / 'docs', []
    docs.mkdir()
    (docs / 'page.md').write_text(PAGE)

    def run(command: list[str]) -> None:
        commands.append(command[1])
        if '--out' in command:
            (tmp_path / command[-1]).mkdir(parents=True)
            Image.new('RGB', (30, 30)).save(tmp_path / command[-1] / 'drawing.png')

    for name, value in dict(DOCS=docs, PAGES=('page.md',), run=run).items():
        monkeypatch.setitem(gallery.main.__globals__, name, value)
    monkeypatch.setattr(sys, 'argv', ['make_gallery.py'])
    gallery.main()
    gallery.main()  # the folder is there: only the training, which ends at once, is run again
    assert commands == ['tools/train.py', 'draw.py', 'tools/train.py']
    assert 'model.png stays as it is: no work_dirs/results/model.pth' in capsys.readouterr().out
    with Image.open(docs / 'one.png') as picture:
        assert picture.mode == 'P' and picture.size == (30, 30)


FILE, THREE_WAYS = 'transnext_tiny_224_1k.pth', (ROOT / 'docs/three_ways.md').read_text()


def test_the_code_of_three_ways_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the configs and a file like the authors', which the hub has, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'configs').symlink_to(ROOT / 'configs')
    released_file(tmp_path / FILE, 'transnext_tiny')

    def download(repo_id: str, filename: str, revision: str | None = None, **kwargs: object) -> str:
        if (repo_id, filename) != ('DaiShiResearch/transnext-tiny-224-1k', FILE) or revision not in (None, 'main'):
            raise EntryNotFoundError(filename)
        return str(tmp_path / FILE)

    monkeypatch.setattr('huggingface_hub.hf_hub_download', download)
    monkeypatch.setattr('timm.models._hub.hf_hub_download', download)
    (first, config, *blocks) = re.findall(r'```python\n(.*?)```', THREE_WAYS, flags=re.DOTALL)
    names = {}
    for block in (first, *blocks):
        exec(block, names)
    assert names['logits'].shape == (1, 1000)
    assert names['features'].shape == (1, 576, 7, 7)
    assert names['pooled'].shape == (1, 576)
    assert names['model'](torch.randn(1, 3, 224, 224)).shape == (1, 10)
    norm = names['backbone'].stages[3].norm.weight
    torch.testing.assert_close(names['model'].backbone.stages[3].norm.weight, norm, rtol=0, atol=0)
    torch.testing.assert_close(names['again'].head.fc.weight, names['micro'].head.fc.weight)
    # 21 blocks, what comes before them, and the head.
    assert {group['lr_scale'] for group in names['optimizer'].param_groups} == {0.8**depth for depth in range(23)}

    (tmp_path / 'upernet.py').write_text(config)
    backbone = OPENMMLAB.build(Config.fromfile('upernet.py').model.backbone)
    backbone.init_weights()
    torch.testing.assert_close(backbone.stages[3].norm.weight, norm, rtol=0, atol=0)


def test_the_table_has_every_model() -> None:
    names = []
    for cell in re.findall(r'^\| (`\w+_.*?) \|', THREE_WAYS, flags=re.MULTILINE):
        for pattern in re.findall('`(.*?)`', cell):
            parts = [part.strip('{}').split(',') for part in re.findall(r'\{.*?\}|[^{]+', pattern)]
            names += map(''.join, itertools.product(*parts))
    assert set(names) == set(MODELS) and all(map(is_model, MODELS))


# Other libraries say these.
OF_OTHERS = re.compile(
    r'Invalid host header|libGL|MMCV|mmsegmentation is|no kernel image|No module named|\.\.\. is not in the mmengine'
)
MESSAGES = [
    message
    for row in re.findall(r'^\| (.*?) \| ', (ROOT / 'docs/troubleshooting.md').read_text(), flags=re.MULTILINE)
    for message in re.findall(r'`([^`]+)`', row)
    if not OF_OTHERS.match(message)
]


@pytest.fixture(scope='module')
def texts() -> list[str]:
    """All strings of the code, with `\\0` for what is formatted into them."""
    found = []
    for file in (*ROOT.glob('bioattn_mm/**/*.py'), *ROOT.glob('tools/**/*.py'), ROOT / 'setup.py'):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(''.join(part.value if isinstance(part, ast.Constant) else '\0' for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


@pytest.mark.parametrize('message', MESSAGES)
def test_the_code_says_what_troubleshooting_explains(message: str, texts: list[str]) -> None:
    pattern = '.*'.join(re.escape(part) for part in re.split(r'\s*\.\.\.:?\s*', message))
    assert any(re.search(pattern, text, flags=re.DOTALL) for text in texts)
