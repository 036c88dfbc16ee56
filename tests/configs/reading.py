"""The configs of the systems, each of which is parsed, and each model built, once for all tests of this folder."""

from functools import cache
from pathlib import Path

import torch
import yaml
from mmengine.config import Config

from bioattn_mm.training.config.model_check import model_of

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.relative_to(ROOT) for path in ROOT.glob('configs/[!_]*/*.py') if path.parent.name != 'deploy')
# Each inherits one of the configs and varies its backbone alone: the tests of all configs, which
# take a second for each, are not repeated for them.
ABLATIONS = sorted(path.relative_to(ROOT) for path in ROOT.glob('configs/*/ablations/*.py'))


@cache
def parse(path: Path) -> Config:
    """A config by its path in the repository, for tests that do not change it."""
    return Config.fromfile(ROOT / path)


@cache
def stated() -> dict[Path, dict]:
    """By config, what the metafiles state."""
    metafiles = [yaml.safe_load(path.read_text()) for path in ROOT.glob('configs/*/metafile.yml')]
    return {Path(model['Config']): model['Metadata'] for metafile in metafiles for model in metafile['Models']}


_models: dict[str, torch.nn.Module] = {}


def shared_model(config: Config) -> torch.nn.Module:
    """The model of a config, without values, for tests that do not change it: one for configs that have the same."""
    key = f'{config.default_scope} {config.model}'
    if key not in _models:
        _models[key] = model_of(config)
    return _models[key]
