"""What mmcv and mmdet import and what is not always installed: mmcv's compiled ops, and `panopticapi`."""

from . import mmcv_ext, panopticapi

__all__ = ['install']


def install() -> None:
    """Provide mmcv's compiled ops and `panopticapi`, where they are not installed; `import bioattn_mm` calls this."""
    mmcv_ext.install()
    panopticapi.install()
