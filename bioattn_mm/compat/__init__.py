"""What mmcv, mmdet and mmpretrain import and what is not always installed, or not in a version that they can take."""

from . import coco_eval, mmcv_ext, multimodal, panopticapi, quiet, webp

__all__ = ['install']


def install() -> None:
    """Provide mmcv's compiled ops and `panopticapi`, where they are not installed, and keep mmpretrain importable.

    Where faster-coco-eval is installed, mmdet evaluates with it. What mmengine prints for
    debugging alone is left out, and WebP images are turned as their EXIF data say.

    `import bioattn_mm` calls this.
    """
    quiet.install()
    webp.install()
    mmcv_ext.install()
    panopticapi.install()
    multimodal.install()
    coco_eval.install()
