"""The command `bioattn`, and configs by name."""

import sys
from pathlib import Path

import pytest

from bioattn_mm.cli import main as command
from bioattn_mm.cli.command_line import ToolParser
from bioattn_mm.errors import InputError
from bioattn_mm.training.installed import FOLDER, find_config, find_configs, how_to_install, similar_configs


@pytest.fixture
def bioattn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path):
    """Runs `bioattn` with arguments in an empty folder; returns the exit code, what it printed, and its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ToolParser, 'command', None)
    monkeypatch.setattr(sys, 'path', [*sys.path])

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, 'argv', ['bioattn', *args])
        code = 0
        try:
            command.main()
        except SystemExit as exit_:
            code = exit_.code or 0
        return code, *capsys.readouterr()

    return run


def test_help_lists_every_tool_with_one_line(bioattn, root: Path) -> None:
    code, printed, _ = bioattn('--help')
    assert code == 0 and bioattn()[1] == printed
    for path in (root / 'tools').rglob('*.py'):
        name = path.stem.replace('_', '-')
        (line,) = [line for line in printed.splitlines() if line.startswith(f'  {name} ')]
        assert len(line.split()) > 4 and len(line) <= 100


def test_a_command_is_a_tool(bioattn) -> None:
    code, printed, _ = bioattn('train', '--help')
    assert code == 0 and printed.startswith('usage: bioattn train')
    assert '  bioattn train configs/transnext/upernet_tiny_ade20k.py --mini' in printed
    assert 'python tools' not in printed
    assert bioattn('test', 'no/such_config', 'no.pth') == (2, '', 'error: config not found: no/such_config\n')
    code, _, errors = bioattn('trian')
    assert code == 2 and errors.startswith("error: there is no command 'trian': expected one of ")


def test_missing_package_names_its_extra(bioattn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'imagecorruptions', None)
    code, _, errors = bioattn('robustness', '--help')
    assert code == 2 and errors.endswith("not installed: pip install 'bioattn_mm[analysis]'\n")
    assert how_to_install(ModuleNotFoundError(name='something_else')) is None
    want = "this needs mmdeploy, which is not installed: pip install 'bioattn_mm[deploy]' && "
    assert how_to_install(ModuleNotFoundError(name='mmdeploy')).startswith(want)


def test_configs_by_name(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        'transnext/upernet_tiny_ade20k', 'transnext/upernet_tiny_ade20k.py', '_base_/strategies/fsdp.py',
        'deploy/segmentation_onnxruntime_dynamic', 'transnext/ablations/transnext-micro-aamm_8xb128_in1k',
    ):  # fmt: skip
        path = root / 'configs' / f'{name.removesuffix(".py")}.py'
        assert find_config(name) == find_config(f'configs/{name}') == str(path) and path.is_file()
    only_one = str(root / 'configs/gab/upernet_vit_small_ade20k.py')
    assert find_configs('upernet_vit_small_ade20k') == [find_config('upernet_vit_small_ade20k')] == [only_one]
    folder = root / 'configs/convit/ablations'
    for name in ('convit/ablations', 'configs/convit/ablations', str(folder)):
        assert [Path(path).resolve() for path in find_configs(name)] == sorted(folder.glob('*.py'))

    assert find_config('no/such_config.py') == 'no/such_config.py' and find_config('') == ''
    assert find_configs('no/such_config') == ['no/such_config'] and similar_configs('no/such_config') == []
    assert 'transnext/upernet_tiny_ade20k' in similar_configs('transnext/upernet_tny_ade20k.py')
    assert 'transnext/mask_rcnn_micro_coco' in similar_configs('mask_rcnn_micro')
    with pytest.raises(InputError, match='several configs are named upernet_tiny_ade20k: .*transnext/upernet_tiny'):
        find_config('upernet_tiny_ade20k')
    # A file of one's own comes first.
    (tmp_path / 'transnext').mkdir()
    (tmp_path / 'transnext' / 'upernet_tiny_ade20k.py').touch()
    assert find_config('transnext/upernet_tiny_ade20k.py') == 'transnext/upernet_tiny_ade20k.py'


def test_the_folder_of_mim_has_what_mim_looks_for(root: Path) -> None:
    for name in ('configs', 'tools', 'model-index.yml'):
        assert (FOLDER / name).resolve() == root / name
