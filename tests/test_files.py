"""Files and folders that are written atomically."""

from pathlib import Path

import pytest

from bioattn_mm.files import atomic_path, atomic_write


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / 'a'
    for text in (b'old', b'new'):
        with atomic_write(path) as file:
            file.write(text)
    assert content(tmp_path) == dict(a=b'new')
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b'half')
        raise RuntimeError
    assert content(tmp_path) == dict(a=b'new')


def test_a_folder(tmp_path: Path) -> None:
    path = tmp_path / 'a'
    for name in ('old', 'new'):
        with atomic_path(path) as partial:
            partial.mkdir()
            (partial / name).write_bytes(b'x')
    assert content(tmp_path) == {'a/new': b'x'}
    with pytest.raises(RuntimeError), atomic_path(path) as partial:
        partial.mkdir()
        (partial / 'half').write_bytes(b'x')
        raise RuntimeError
    assert content(tmp_path) == {'a/new': b'x'}
