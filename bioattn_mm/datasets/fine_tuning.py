"""Data sets for classifiers, in their published layout, that mmpretrain does not have: Stanford Dogs and PACS."""

from pathlib import Path

import numpy as np
from mmengine.dataset import BaseDataset
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from ..errors import InputError
from ..registry import DATASETS

DOMAINS = ('art_painting', 'cartoon', 'photo', 'sketch')


@DATASETS.register_module()
class StanfordDogs(BaseDataset):
    """20,580 images of 120 breeds of dogs, 12,000 of them for training (Khosla et al., CVPR workshop FGVC 2011).

    Args:
        data_root: Folder with `Images`, which has a folder for each breed, `train_list.mat` and `test_list.mat`, as
            the archives images.tar and lists.tar have them.
        split: 'train' or 'test'.
        **kwargs: Other arguments of mmengine's `BaseDataset`.

    Raises:
        InputError: A file is missing, or `split` is another one.
    """

    def __init__(self, data_root: str, split: str = 'train', **kwargs) -> None:
        if split not in ('train', 'test'):
            raise InputError(f"the split of Stanford Dogs must be 'train' or 'test', got {split!r}")
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
        **kwargs: Other arguments of mmengine's `BaseDataset`.

    Raises:
        InputError: There is no such domain or split, or a folder is missing.
    """

    CLASSES = ('dog', 'elephant', 'giraffe', 'guitar', 'horse', 'house', 'person')

    def __init__(self, data_root: str, target: str, split: str = 'train', **kwargs) -> None:
        if target not in DOMAINS or split not in ('train', 'test'):
            raise InputError(
                f"PACS takes a target of {', '.join(DOMAINS)} and the split 'train' or 'test', got {target!r} and "
                f'{split!r}'
            )
        sources = [domain for domain in DOMAINS if domain != target]
        self.domains = sources if split == 'train' else [target]
        metainfo = dict(classes=self.CLASSES)
        super().__init__(data_root=data_root, metainfo=metainfo, test_mode=split == 'test', **kwargs)

    def load_data_list(self) -> list[dict]:
        samples = []
        for domain in self.domains:
            folder = Path(self.data_root, domain)
            absent = [name for name in self.CLASSES if not (folder / name).is_dir()]
            if absent:
                raise InputError(f'no folder {absent[0]} in {folder}: expected a folder for each class of PACS')
            labels = {name: label for label, name in enumerate(self.CLASSES)}
            samples += make_dataset(str(folder), labels, IMG_EXTENSIONS)
        return [dict(img_path=path, gt_label=label) for path, label in samples]
