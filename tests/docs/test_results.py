"""docs/results.md and benchmarks/results.py, which makes it."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from mmengine.config import Config

from bioattn_mm.training.installed import find_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def page() -> Iterator[ModuleType]:
    """benchmarks/results_page.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / 'benchmarks')
        import results_page

        yield results_page
    for name in ('results_page', 'results_rows'):
        sys.modules.pop(name)


def test_the_page_is_made_of_the_records(page: ModuleType) -> None:
    assert (ROOT / 'docs/results.md').read_text() == page.page_text(page.read_records()), (
        'run python benchmarks/results.py --table'
    )
    pictures = {page.picture_of(group) for group in page.GROUPS if page.curves_of(group, page.read_records())}
    assert {str(path.relative_to(ROOT / 'docs')) for path in (ROOT / 'docs/results').glob('*')} == pictures


def test_every_record_is_of_a_row(page: ModuleType) -> None:
    """And says what is needed to make it again."""
    rows = [row for group in page.GROUPS for row in group.rows]
    names = {(row.data, f'{row.name}-seed{seed}') for row in rows for seed in row.seeds}
    for path in page.RECORDS.glob('*.json'):
        for name, record in json.loads(path.read_text()).items():
            assert (path.stem, name) in names
            assert name == f'{record["row"]}-seed{record["seed"]}'
            assert {'state', 'config', 'command', 'hardware', 'processor_hours'} <= record.keys()
            assert record['command'].startswith(f'bioattn train {record["config"]} ')


def test_runs_at_once_lose_no_record(page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, 'RECORDS', tmp_path)
    first, second, *_ = page.GROUPS[0].rows
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: page.write_record(first, seed, dict(seed=seed)), range(24)))
    page.write_record(first, 3, dict(state='finished'))
    assert page.read_record(first, 2) == dict(seed=2) and page.read_record(first, 3) == dict(state='finished')
    assert page.read_record(second, 2) is None
    (path,) = tmp_path.iterdir()
    assert len(path.read_text().splitlines()) == 24 + 2


def test_every_config_of_a_row_is_there(page: ModuleType) -> None:
    for config in {row.config.split()[0] for group in page.GROUPS for row in group.rows}:
        path = ROOT / config if config.endswith('.py') else Path(find_config(config))
        assert path.is_file() or config in ('upernet', 'mask2former', 'mask2former_instance', 'mask_rcnn', 'dino')
        if 'benchmarks' in config:
            assert 'train_dataloader' in Config.fromfile(path)


def record(iterations: int, top1: float | None = None) -> dict:
    """A record of a run of 600 iterations, finished if it has an accuracy."""
    entries = dict(
        state='began', hardware='a machine', iterations=iterations, of_iterations=600, images_seen=50 * iterations,
        processor_hours=0.5, curve=[[100, 20.0]],
    )  # fmt: skip
    return entries | (dict(state='finished', metrics={'accuracy/top1': top1}) if top1 is not None else {})


def test_means_ranges_states_and_claims(page: ModuleType) -> None:
    """Numbers by hand: 50, 54 and 58 % against 49, 50 and 60 %."""
    records = {('cifar10-gab', seed): record(600, top1) for seed, top1 in enumerate((50.0, 54.0, 58.0))}
    host = 'cifar10-gab-without-gaussian'
    records |= {(host, 0): record(600, 49.0), (host, 1): record(600), (host, 2): record(200)}

    def of_gab() -> str:
        return page.page_text(records).partition('## GAB')[2].partition('\n## ')[0]

    assert '`gab`: 10,000-30,000 images, 0.50 hours a run.\n' in of_gab()
    assert '|GABViT|54.0 (50.0-58.0)|finished|' in of_gab()
    states = ('finished', 'trained, not tested', 'iteration 200/600')
    assert f'|49.0|{"; ".join(f"1 of 3 seeds {state}" for state in states)}|' in of_gab()
    assert '|with and without Gaussians|+1.0|from 1 of 3 seeds|\n' in of_gab()
    records |= {(host, 1): record(600, 50.0), (host, 2): record(600, 60.0)}
    assert '|with and without Gaussians|+1.0 (-2.0 to +4.0)|varies over seeds|\n' in of_gab()
    records |= {(host, seed): record(600, 60.0) for seed in range(3)}
    assert '|with and without Gaussians|-6.0 (-10.0 to -2.0)|no|\n' in of_gab()
    assert page.state_of(None) == 'not run yet'
    assert page.with_range([716]) == '716' and page.with_range([716, 717]) == '716.5 (716-717)'
