"""The configs of the systems, each of which is parsed once for all tests of this folder."""

from functools import cache
from pathlib import Path

from mmengine.config import Config

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.relative_to(ROOT) for path in ROOT.glob('configs/[!_]*/*.py') if path.parent.name != 'deploy')


@cache
def parse(path: Path) -> Config:
    """A config by its path in the repository, for tests that do not change it."""
    return Config.fromfile(ROOT / path)
