"""Pipeline transforms."""

import mmcv.transforms

from ..errors import InputError
from ..registry import TRANSFORMS


@TRANSFORMS.register_module()
class LoadImageFromFile(mmcv.transforms.LoadImageFromFile):
    """mmcv's `LoadImageFromFile`, which names the file that is missing or cannot be decoded."""

    def transform(self, results: dict) -> dict | None:
        try:
            return super().transform(results)
        except FileNotFoundError as error:
            raise InputError(f'image not found: {results["img_path"]}') from error
        except Exception as error:
            raise InputError(
                f'cannot decode the image {results["img_path"]}: no picture, or damaged; replace or remove it'
            ) from error
