"""Test sets for classifiers of ImageNet-1k beside its own: V2, A, R, Sketch and C.

Their images are in a folder for each class, whose name says which of the 1000 classes it is.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from mmengine.dataset import BaseDataset
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from ..errors import InputError
from ..registry import DATASETS
from .corruption import SEVERITIES

NUM_CLASSES = 1000
# Top-1 errors of AlexNet in percent, means over the severities, by which mCE is normalised (Hendrycks and Dietterich,
# ICLR 2019; to six digits in https://github.com/hendrycks/robustness). The keys are the folders of ImageNet-C.
ALEXNET_ERRORS = dict(
    gaussian_noise=88.6428,
    shot_noise=89.4468,
    impulse_noise=92.2640,
    defocus_blur=81.9880,
    glass_blur=82.6268,
    motion_blur=78.5948,
    zoom_blur=79.8360,
    snow=86.6816,
    frost=82.6572,
    fog=81.9324,
    brightness=56.4592,
    contrast=85.3204,
    elastic_transform=64.6056,
    pixelate=71.7840,
    jpeg_compression=60.6500,
)


class ImageNetFolders(BaseDataset):
    """Images of some or all classes of ImageNet-1k, for testing.

    The folders of the classes are named by WordNet ids, such as n01440764, or by the indices of the classes. A label
    is the index among all 1000 classes. The meta information has the names of these as `classes`, and as `subset` the
    indices of those that have a folder, in ascending order, among which `SubsetAccuracy` lets a model choose.

    Args:
        data_root: The folder with the folders of the classes.
        **kwargs: Other arguments of mmengine's `BaseDataset`.

    Raises:
        InputError: A folder is not named after a class.
    """

    def __init__(self, data_root: str, **kwargs) -> None:
        # Imported here: mmpretrain takes seconds, and other data sets of this package do not need it.
        from mmpretrain.datasets.categories import IMAGENET_CATEGORIES

        super().__init__(data_root=data_root, metainfo=dict(classes=IMAGENET_CATEGORIES), **kwargs)

    def load_data_list(self) -> list[dict]:
        samples = [sample for folder in self.folders() for sample in find_images(folder)]
        self._metainfo['subset'] = sorted({label for _, label in samples})
        return [dict(img_path=path, gt_label=label) for path, label in samples]

    def folders(self) -> Iterator[Path]:
        """The folders that hold folders of classes."""
        yield Path(self.data_root)


@DATASETS.register_module()
class ImageNetV2(ImageNetFolders):
    """A second test set, collected as the first was: 10,000 images of all classes (Recht et al., ICML 2019)."""


@DATASETS.register_module()
class ImageNetA(ImageNetFolders):
    """Natural adversarial examples: 7,500 images of 200 classes (Hendrycks et al., CVPR 2021)."""


@DATASETS.register_module()
class ImageNetR(ImageNetFolders):
    """Renditions, such as paintings and toys: 30,000 images of 200 classes (Hendrycks et al., ICCV 2021)."""


@DATASETS.register_module()
class ImageNetSketch(ImageNetFolders):
    """Sketches: 50,889 images of all classes (Wang et al., NeurIPS 2019)."""


@DATASETS.register_module()
class ImageNetC(ImageNetFolders):
    """The validation set under 15 corruptions of 5 severities, as files (Hendrycks and Dietterich, ICLR 2019).

    Below `data_root` are folders CORRUPTION/SEVERITY, or CATEGORY/CORRUPTION/SEVERITY with the categories noise,
    blur, weather and digital, each with a folder for each class.

    Args:
        data_root: See above.
        corruptions: Names of corruptions (default: the 15 of mCE).
        severities: Integers from 1 to 5 (default: all).
        **kwargs: Other arguments of mmengine's `BaseDataset`.

    Raises:
        InputError: There is no folder of a corruption and severity.
    """

    def __init__(
        self,
        data_root: str,
        corruptions: tuple[str, ...] = tuple(ALEXNET_ERRORS),
        severities: tuple[int, ...] = SEVERITIES,
        **kwargs,
    ) -> None:
        self.corruptions, self.severities = corruptions, severities
        super().__init__(data_root, **kwargs)

    def folders(self) -> Iterator[Path]:
        for corruption in self.corruptions:
            for severity in self.severities:
                yield corruption_folder(self.data_root, corruption, severity)


@DATASETS.register_module()
def imagenet_first_classes(number: int, **kwargs: object) -> BaseDataset:
    """Build mmpretrain's `ImageNet` with the images of its first classes alone, as in ConViT's figure 8.

    Args:
        number: How many classes: those of the labels 0 to number - 1, in the order of the WordNet ids.
        **kwargs: Arguments of `ImageNet`.

    Raises:
        InputError: There are no images of these classes.
    """
    from mmpretrain.datasets import ImageNet

    dataset = ImageNet(**kwargs)
    dataset.full_init()
    chosen = np.flatnonzero(dataset.get_gt_labels() < number).tolist()
    if not chosen:
        raise InputError(
            f'none of the {len(dataset):,} images of {dataset.data_root} is of the first {number} classes'
        )
    dataset.get_subset_(chosen)
    dataset._metainfo['classes'] = tuple(dataset.metainfo['classes'][:number])
    return dataset


def find_images(folder: Path) -> list[tuple[str, int]]:
    """Paths and labels of the images in the folders of classes, see `ImageNetFolders`."""
    labels = {path.name: label_of(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    if not labels:
        raise InputError(f'{folder} has no folders of classes, such as n01440764')
    return make_dataset(str(folder), labels, IMG_EXTENSIONS)


def label_of(folder: Path) -> int:
    """Index of the class that a folder is named after."""
    labels = wordnet_labels()
    if folder.name in labels:
        return labels[folder.name]
    if folder.name.isdecimal() and int(folder.name) < NUM_CLASSES:
        return int(folder.name)
    raise InputError(
        f'{folder} is not named after a class of ImageNet-1k: expected its WordNet id, such as n01440764, or its '
        f'index, 0 to {NUM_CLASSES - 1}; name the folder that holds the folders of the classes'
    )


@functools.cache
def wordnet_labels() -> dict[str, int]:
    """Indices of the classes of ImageNet-1k by WordNet id."""
    from timm.data import ImageNetInfo  # here, because timm takes seconds to import

    return {name: label for label, name in enumerate(ImageNetInfo('imagenet-1k').label_names())}


def corruption_folder(data_root: str | Path, corruption: str, severity: int) -> Path:
    """The folder of ImageNet-C with the classes of one corruption and severity, see `ImageNetC`.

    Raises:
        InputError: There is none.
    """
    part = f'{corruption}/{severity}'
    for folder in (Path(data_root, part), *Path(data_root).glob(f'*/{part}')):
        if folder.is_dir():
            return folder
    raise InputError(f'no folder {part} in {data_root}, nor one level deeper: expected the layout of ImageNet-C')


def mean_corruption_error(top1: dict[tuple[str, int], float]) -> float | None:
    """mCE: errors of each corruption, means over severities, in percent of AlexNet's, and their mean.

    Args:
        top1: Top-1 accuracy in percent by corruption and severity.

    Returns:
        The mCE in percent; None unless all 15 corruptions and 5 severities are there.
    """
    if not all((corruption, severity) in top1 for corruption in ALEXNET_ERRORS for severity in SEVERITIES):
        return None
    ratios = [
        np.mean([100 - top1[corruption, severity] for severity in SEVERITIES]) / error
        for corruption, error in ALEXNET_ERRORS.items()
    ]
    return 100 * float(np.mean(ratios))
