"""What mmcv, mmdet and mmpretrain import and what is not always installed, or not in a version that they can take."""

from . import stand_ins
from .patches import PATCHES

__all__ = ['install']


def install() -> None:
    """Provide what upstream libraries lack (`stand_ins`), and change what must be changed in them (`patches`).

    `import bioattn_mm` calls this.
    """
    PATCHES.install()
    stand_ins.install()
