"""The configs of the systems, each of which is parsed once for all tests of this folder."""

from functools import cache
from pathlib import Path

from mmengine.config import Config

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.relative_to(ROOT) for path in ROOT.glob('configs/[!_]*/*.py') if path.parent.name != 'deploy')
# Each inherits one of the configs and varies its backbone alone (test_ablations.py): the tests of all configs, which
# take a second for each, are not repeated for them.
ABLATIONS = sorted(path.relative_to(ROOT) for path in ROOT.glob('configs/*/ablations/*.py'))


@cache
def parse(path: Path) -> Config:
    """A config by its path in the repository, for tests that do not change it."""
    return Config.fromfile(ROOT / path)
