"""Data for classifiers that mmpretrain does not have: test sets of ImageNet-1k, Stanford Dogs, PACS, parts of sets.

Test sets of ImageNet have a folder for each class, whose name says which of the 1000 classes it is.
"""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from mmengine.registry import DATASETS as MMENGINE_DATASETS
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from ..errors import InputError
from ..registry import DATASETS
from .corruption import SEVERITIES

NUM_CLASSES = 1000
DOMAINS = ('art_painting', 'cartoon', 'photo', 'sketch')  # of PACS
# Top-1 errors of AlexNet in percent, means over the severities, by which mCE is normalised (Hendrycks and Dietterich,
# ICLR 2019; to six digits in https://github.com/hendrycks/robustness). The keys are the folders of ImageNet-C.
ALEXNET_ERRORS = dict(
    gaussian_noise=88.6428, shot_noise=89.4468, impulse_noise=92.2640, defocus_blur=81.9880, glass_blur=82.6268,
    motion_blur=78.5948, zoom_blur=79.8360, snow=86.6816, frost=82.6572, fog=81.9324, brightness=56.4592,
    contrast=85.3204, elastic_transform=64.6056, pixelate=71.7840, jpeg_compression=60.6500,
)  # fmt: skip


class ImageNetFolders(BaseDataset):
    """Images of some or all classes of ImageNet-1k, for testing.

    The folders of the classes are named by WordNet ids, such as n01440764, or by the indices of the classes. A label
    is the index among all 1000 classes. The meta information has the names of these as `classes`, and as `subset` the
    indices of those that have a folder, in ascending order, among which `SubsetAccuracy` lets a model choose.
    """

    def __init__(self, data_root: str, **kwargs) -> None:
        # Imported here: mmpretrain takes seconds, and the other data sets of this package do not need it.
        from mmpretrain.datasets.categories import IMAGENET_CATEGORIES

        super().__init__(data_root=data_root, metainfo=dict(classes=IMAGENET_CATEGORIES), **kwargs)

    def load_data_list(self) -> list[dict]:
        samples = []
        for folder in self.folders():
            labels = {path.name: _label_of(path) for path in sorted(folder.iterdir()) if path.is_dir()}
            if not labels:
                raise InputError(f'{folder} has no folders of classes, such as n01440764')
            samples += make_dataset(str(folder), labels, IMG_EXTENSIONS)
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
        corruptions: Names of corruptions (default: the 15 of mCE).
        severities: Integers from 1 to 5 (default: all).
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
        for corruption, severity in itertools.product(self.corruptions, self.severities):
            yield corruption_folder(self.data_root, corruption, severity)


@DATASETS.register_module()
def imagenet_first_classes(number: int, **kwargs: object) -> BaseDataset:
    """mmpretrain's `ImageNet` with its first classes by WordNet id alone, as in ConViT's figure 8."""
    from mmpretrain.datasets import ImageNet

    dataset = ImageNet(**kwargs)
    dataset.full_init()
    dataset.get_subset_(np.flatnonzero(dataset.get_gt_labels() < number).tolist())
    dataset._metainfo['classes'] = tuple(dataset.metainfo['classes'][:number])
    return dataset


def _label_of(folder: Path) -> int:
    """Index of the class that a folder is named after."""
    name = folder.name
    label = wordnet_labels().get(name, int(name) if name.isdecimal() else NUM_CLASSES)
    if label < NUM_CLASSES:
        return label
    raise InputError(
        f'{folder} is not named after a class of ImageNet-1k: expected its WordNet id, such as n01440764, or its '
        f'index, 0 to {NUM_CLASSES - 1}; name the folder that holds the folders of the classes'
    )


@functools.cache
def wordnet_labels() -> dict[str, int]:
    """Indices of the classes of ImageNet-1k by WordNet id."""
    from timm.data import ImageNetInfo  # imported here, because timm takes seconds

    return {name: label for label, name in enumerate(ImageNetInfo('imagenet-1k').label_names())}


def corruption_folder(data_root: str | Path, corruption: str, severity: int) -> Path:
    """The folder of ImageNet-C with the classes of one corruption and severity, see `ImageNetC`."""
    part = f'{corruption}/{severity}'
    for folder in (Path(data_root, part), *Path(data_root).glob(f'*/{part}')):
        if folder.is_dir():
            return folder
    raise InputError(f'no folder {part} in {data_root}, nor one level deeper: expected the layout of ImageNet-C')


def mean_corruption_error(top1: dict[tuple[str, int], float]) -> float | None:
    """mCE in percent: the mean over corruptions of their errors, means over severities, relative to AlexNet's.

    `top1` is the accuracy in percent by corruption and severity. None unless all 15 corruptions have 5 severities.
    """
    if not top1.keys() >= set(itertools.product(ALEXNET_ERRORS, SEVERITIES)):
        return None
    errors = {name: 100 - np.mean([top1[name, severity] for severity in SEVERITIES]) for name in ALEXNET_ERRORS}
    return 100 * float(np.mean([errors[name] / of_alexnet for name, of_alexnet in ALEXNET_ERRORS.items()]))


@DATASETS.register_module()
class StanfordDogs(BaseDataset):
    """20,580 images of 120 breeds of dogs, 12,000 of them for training (Khosla et al., CVPR workshop FGVC 2011).

    Args:
        data_root: Folder in which images.tar and lists.tar were unpacked.
        split: 'train' or 'test'.
    """

    def __init__(self, data_root: str, split: str = 'train', **kwargs) -> None:
        self.split = split
        super().__init__(data_root=data_root, test_mode=split == 'test', **kwargs)

    def load_data_list(self) -> list[dict]:
        import mat4py  # of mmpretrain, whose Stanford Cars are lists of MATLAB, too

        path = Path(self.data_root, f'{self.split}_list.mat')
        if not path.is_file():
            raise InputError(f'no file {path}: unpack lists.tar of Stanford Dogs there, and images.tar')
        content = mat4py.loadmat(str(path))
        # Columns of a matrix.
        files, labels = (np.ravel(content[key]).tolist() for key in ('file_list', 'labels'))
        pairs = [(file, int(label)) for file, label in zip(files, labels, strict=True)]
        # A folder is named 'n02085620-Chihuahua'.
        names = {label: file.partition('/')[0].partition('-')[2] for file, label in pairs}
        self._metainfo['classes'] = tuple(names[label] for label in sorted(names))
        return [dict(img_path=str(Path(self.data_root, 'Images', file)), gt_label=label - 1) for file, label in pairs]


@DATASETS.register_module()
class PACS(BaseDataset):
    """Domain generalisation: 9,991 images of 7 classes as art, cartoons, photos and sketches (Li et al., ICCV 2017).

    Args:
        data_root: Folder with a folder for each domain, and a folder for each class in it.
        target: The domain that is left out of the training, one of `DOMAINS`.
        split: 'train' for all images of the three other domains, 'test' for all of the target.
    """

    CLASSES = ('dog', 'elephant', 'giraffe', 'guitar', 'horse', 'house', 'person')

    def __init__(self, data_root: str, target: str, split: str = 'train', **kwargs) -> None:
        if target not in DOMAINS:
            raise InputError(f'the target of PACS must be one of {", ".join(DOMAINS)}, got {target!r}')
        sources = [domain for domain in DOMAINS if domain != target]
        self.domains = sources if split == 'train' else [target]
        metainfo = dict(classes=self.CLASSES)
        super().__init__(data_root=data_root, metainfo=metainfo, test_mode=split == 'test', **kwargs)

    def load_data_list(self) -> list[dict]:
        samples, labels = [], {name: label for label, name in enumerate(self.CLASSES)}
        for domain in self.domains:
            folder = Path(self.data_root, domain)
            if absent := [name for name in self.CLASSES if not (folder / name).is_dir()]:
                raise InputError(f'no folder {absent[0]} in {folder}: expected a folder for each class of PACS')
            samples += make_dataset(str(folder), labels, IMG_EXTENSIONS)
        return [dict(img_path=path, gt_label=label) for path, label in samples]


@DATASETS.register_module()
class RandomPart(BaseDataset):
    """70, 15 or 15 % of the images of a whole data set at random, the same in every process and every run.

    Args:
        data_root: Folder of the data set.
        parts: Configs of its published parts, without `data_root`, which are put together.
        split: 'train', 'val' or 'test'.
    """

    def __init__(self, data_root: str, parts: list[dict], split: str = 'train', **kwargs) -> None:
        self.parts, self.split = parts, split
        super().__init__(data_root=data_root, test_mode=split != 'train', **kwargs)

    def load_data_list(self) -> list[dict]:
        wholes = [MMENGINE_DATASETS.build({**part, 'data_root': self.data_root}) for part in self.parts]
        samples = [whole.get_data_info(index) for whole in wholes for index in range(len(whole))]
        self._metainfo['classes'] = wholes[0].metainfo['classes']
        first, step = int(0.7 * len(samples)), int(0.15 * len(samples))
        start, end = dict(train=(0, first), val=(first, first + step), test=(first + step, first + 2 * step))[
            self.split
        ]
        order = np.random.RandomState(0).permutation(len(samples))
        return [samples[index] for index in order[start:end]]


@DATASETS.register_module()
def class_balanced_part(dataset: dict, fraction: float) -> BaseDataset:
    """Build a dataset of mmpretrain with a fraction of the images of each class.

    The images are the same in every process and every run, and those of a smaller fraction are among those of a
    larger one. For configs: `dict(type='bioattn_mm.class_balanced_part', fraction=0.1, dataset=dict(...))`.

    Args:
        dataset: Config of the dataset, whose images have one class each.
        fraction: Above 0, at most 1. The number of images of a class is rounded, and at least 1.
    """
    if not 0 < fraction <= 1:
        raise InputError(f'the fraction of a dataset must be above 0 and at most 1, got {fraction}')
    whole = MMENGINE_DATASETS.build(dataset)
    whole.full_init()
    labels = whole.get_gt_labels()
    chosen = []
    for label in np.unique(labels):
        of_class = np.random.default_rng([0, int(label)]).permutation(np.flatnonzero(labels == label))
        chosen.extend(of_class[: max(1, round(fraction * len(of_class)))].tolist())
    print_log(f'{len(chosen):,} of {len(whole):,} images, {fraction:g} of those of each class', 'current')
    whole.get_subset_(sorted(chosen))
    return whole
