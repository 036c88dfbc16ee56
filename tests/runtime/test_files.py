"""Files and folders that are written atomically."""

from pathlib import Path

import pytest

from bioattn_mm.errors import InputError
from bioattn_mm.runtime.files import atomic_folder, atomic_path, partial_path, read_json, write_json

from ..files import contents


@pytest.mark.parametrize('is_folder', [False, True])
def test_what_is_half_written_never_has_the_name(is_folder: bool, tmp_path: Path) -> None:
    def write(text: str, *errors: type[Exception]) -> None:
        with atomic_path(tmp_path / 'a') as partial:
            if is_folder:
                partial.mkdir()
            (partial / text if is_folder else partial).write_text(text)
            for error in errors:
                raise error

    for text in ('old', 'new'):
        write(text)
        assert contents(tmp_path) == {f'a/{text}' if is_folder else 'a': text.encode()}
    before = contents(tmp_path)
    with pytest.raises(RuntimeError):
        write('half', RuntimeError)
    assert contents(tmp_path) == before


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
    write_json(path, dict(names=[1, (float('inf'), 2.5)]))
    assert read_json(path, 'make it again', names=list) == dict(names=[1, [None, 2.5]])
