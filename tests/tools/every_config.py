"""The names of all configs that have a miniature."""

import re

from .running import ROOT

# Classifiers on data sets that `--mini` has no miniature of.
NO_MINIATURE = re.compile('_(in100|cifar100|pet|caltech101|cars|dogs|pacs)$')
NAMES = sorted(
    str(path.relative_to(ROOT / 'configs').with_suffix(''))
    for path in (*(ROOT / 'configs').glob('[!_]*/*.py'), *(ROOT / 'configs').glob('*/ablations/*.py'))
    if path.parent.name != 'deploy' and not NO_MINIATURE.search(path.stem)
)
CLASSIFIERS = [name for name in NAMES if '_in1k' in name]
CONFIGS = [name for name in NAMES if name not in CLASSIFIERS]
