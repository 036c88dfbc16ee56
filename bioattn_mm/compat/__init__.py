"""What mmcv, mmdet and mmpretrain import and what is not always installed, or not in a version that they can take."""

from . import mmcv_ext, multimodal, panopticapi

__all__ = ['install']


def install() -> None:
    """Provide mmcv's compiled ops and `panopticapi`, where they are not installed, and keep mmpretrain importable.

    `import bioattn_mm` calls this.
    """
    mmcv_ext.install()
    panopticapi.install()
    multimodal.install()
