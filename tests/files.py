"""What is in a folder, before and after something that may or may not change it."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder, by their path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}
