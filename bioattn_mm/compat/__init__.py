"""What mmcv, mmdet and mmpretrain import and what is not always installed, or not in a version that they can take."""

from . import coco_eval, mmcv_ext, multimodal, panopticapi

__all__ = ['install']


def install() -> None:
    """Provide mmcv's compiled ops and `panopticapi`, where they are not installed, and keep mmpretrain importable.

    Where faster-coco-eval is installed, mmdet evaluates with it.

    `import bioattn_mm` calls this.
    """
    mmcv_ext.install()
    panopticapi.install()
    multimodal.install()
    coco_eval.install()
