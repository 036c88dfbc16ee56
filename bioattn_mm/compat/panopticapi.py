"""A stand-in for `panopticapi`, whose functions mmdet imports for panoptic segmentation (see `panoptic`)."""

import sys
from types import ModuleType

from .stand_in import StandIn

# What the package and its modules provide.
CONTENTS = {
    'panopticapi': (),
    'panopticapi.utils': ('rgb2id', 'id2rgb'),
    'panopticapi.evaluation': ('OFFSET', 'VOID', 'PQStat', 'PQStatCat'),
}


def fill(module: ModuleType) -> None:
    """Give a module of `panopticapi` its content."""
    from . import panoptic  # imported here, because NumPy takes time and few runs need this

    for name in CONTENTS[module.__name__]:
        setattr(module, name, getattr(panoptic, name))


STAND_INS = [StandIn(name, __name__, fill, is_package='.' not in name) for name in CONTENTS]


def install() -> None:
    """Provide `panopticapi` if it is not installed. A second call does nothing."""
    for stand_in in STAND_INS:
        if stand_in not in sys.meta_path:
            stand_in.install()
