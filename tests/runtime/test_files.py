"""Files and folders that are written atomically."""

from pathlib import Path

import pytest

from bioattn_mm.errors import InputError
from bioattn_mm.runtime.files import atomic_folder, atomic_path, atomic_write, partial_path, read_json

from ..files import contents


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / 'a'
    for text in (b'old', b'new'):
        with atomic_write(path) as file:
            file.write(text)
    assert contents(tmp_path) == dict(a=b'new')
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b'half')
        raise RuntimeError
    assert contents(tmp_path) == dict(a=b'new')


def test_a_folder(tmp_path: Path) -> None:
    path = tmp_path / 'a'
    for name in ('old', 'new'):
        with atomic_path(path) as partial:
            partial.mkdir()
            (partial / name).write_bytes(b'x')
    assert contents(tmp_path) == {'a/new': b'x'}
    with pytest.raises(RuntimeError), atomic_path(path) as partial:
        partial.mkdir()
        (partial / 'half').write_bytes(b'x')
        raise RuntimeError
    assert contents(tmp_path) == {'a/new': b'x'}


def test_a_new_folder_holds_nothing_of_a_killed_run(tmp_path: Path) -> None:
    partial_path(tmp_path / 'a').mkdir()
    (partial_path(tmp_path / 'a') / 'half').write_bytes(b'x')
    with atomic_folder(tmp_path / 'a') as partial:
        (partial / 'whole').write_bytes(b'x')
    assert contents(tmp_path) == {'a/whole': b'x'}


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        (b'{', 'is damaged, Expecting property name'),
        (b'', 'is damaged, Expecting value'),
        (b'\xff\xfe', "is damaged, 'utf-8' codec"),
        (b'[' * 100_000, 'is damaged, maximum recursion'),
        (b'[1]', 'is damaged, it holds no object'),
        (b'{"names": {}}', 'is damaged, it has no names that is a list'),
        (b'{}', 'is damaged, it has no names that is a list'),
    ],
)
def test_an_object_of_json_that_is_damaged(text: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / 'a.json'
    path.write_bytes(text)
    with pytest.raises(InputError, match=f'a.json {reason}.*: make it again'):
        read_json(path, 'make it again', names=list)
    path.write_bytes(b'{"names": [1]}')
    assert read_json(path, 'make it again', names=list) == dict(names=[1])
