"""docs/results.md: what was measured on real data, made from the JSON that `results.py` has written."""

from pathlib import Path

from bioattn_mm.files import read_json

RECORDS = Path(__file__).resolve().parent / 'results'


def record_path(row: str, seed: int) -> Path:
    """The file of a run."""
    return RECORDS / f'{row}-seed{seed}.json'


def read_record(row: str, seed: int) -> dict | None:
    """What was measured in a run; None if it has not begun."""
    path = record_path(row, seed)
    return read_json(path, 'remove it, and run the row again') if path.exists() else None


def state_of(record: dict | None) -> str:
    """How far a run has come."""
    if record is None:
        return 'not run yet'
    if record['state'] == 'finished':
        return 'finished'
    if 'iterations' not in record:
        return 'began'
    if record['iterations'] == record['of_iterations']:
        return 'trained, not tested'
    return f'came to iteration {record["iterations"]:,} of {record["of_iterations"]:,}'


def write_page(docs: Path) -> list[Path]:
    raise NotImplementedError
