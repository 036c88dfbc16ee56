"""Tests on corrupted or attacked images, whose results are kept one by one, and their means.

After Michaelis et al. 2019, "Benchmarking robustness in object detection": the mean performance under corruption
(mPC), `1 / (corruptions * severities) * sum P_cs`, and the relative one (rPC), `mPC / P_clean`.
"""

import hashlib
import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from torch import Tensor

from ..data.classification import corruption_folder, mean_corruption_error
from ..errors import InputError
from ..runtime.files import read_json, write_json
from ..training.config.pipelines import find_datasets, image_kind
from ..training.config.testing import set_test_set
from .attacks import AttackHook, check_attackable, fgsm, pgd
from .evaluation import TrainedModel

# A condition is what a test does to its images and how much of it, such as ('fog', 3) or ('pgd', '4/255').
Condition = tuple[str, int | str]
# The images as they are.
CLEAN: Condition = ('none', 0)
OTHER_FOLDER = 'name another folder for --out'


@dataclass(frozen=True)
class Corruptions:
    """Tests on corrupted images.

    Attributes:
        names: Corruptions of ImageNet-C.
        levels: Severities, 1 to 5.
        imagenet_c: Folder of ImageNet-C, for classifiers of ImageNet-1k; None to corrupt the config's own test set.
    """

    names: list[str]
    levels: list[int]
    imagenet_c: str | None = None

    @property
    def settings(self) -> dict:
        """By the tool's options, to be compared with those of earlier results."""
        return dict(corruptions=self.names, severities=self.levels, imagenet_c=self.imagenet_c)

    @property
    def conditions(self) -> list[Condition]:
        """Every corruption with every severity."""
        return list(product(self.names, self.levels))

    def change(self, config: Config, name: str, level: int) -> list[Hook]:
        """Let a config test under a condition, and return the hooks that its Runner needs."""
        if self.imagenet_c is None:
            insert_corruption(config, name, level)
            return []
        corruption_folder(self.imagenet_c, name, level)
        evaluator = config.test_evaluator
        set_test_set(config, 'c', self.imagenet_c)
        config.test_dataloader.dataset.update(corruptions=[name], severities=[level])
        config.test_evaluator = evaluator
        return []


@dataclass(frozen=True)
class Attacks:
    """Tests on adversarial images, with the interface of `Corruptions`.

    Attributes:
        names: Of `ATTACKS`.
        levels: Epsilons as 'N/255', N in values of pixels.
        steps: Number of PGD's steps.
    """

    names: list[str]
    levels: list[str]
    steps: int = 5

    conditions = Corruptions.conditions

    @property
    def settings(self) -> dict:
        return dict(attack=self.names, epsilon=self.levels, steps=self.steps)

    def change(self, config: Config, name: str, level: str) -> list[Hook]:
        check_attackable(config)
        epsilon = float(level.removesuffix('/255'))
        return [AttackHook(fgsm(epsilon) if name == 'fgsm' else pgd(epsilon, self.steps))]


class Results:
    """Results of tests in a folder, so that an interrupted run can go on.

    Args:
        folder: The folder; made if it does not exist.
        models: The models by name.
        settings: Settings of the run by option. Lists, such as names of corruptions, must have all earlier entries;
            all else must be as it was.

    Attributes:
        models: For each model its files, and hashes of its config, after all overrides, and of its weights.
    """

    def __init__(self, folder: Path, models: dict[str, TrainedModel], settings: dict) -> None:
        self.folder = folder
        self.models = {
            name: dict(
                config=str(model.config.filename),
                checkpoint=model.checkpoint,
                config_sha256=hashlib.sha256(model.config.pretty_text.encode()).hexdigest(),
                checkpoint_sha256=_sha256_of(model.state_dict),
            )
            for name, model in models.items()
        }
        path = folder / 'settings.json'
        if path.exists():
            self._check(read_json(path, OTHER_FOLDER, models=dict), settings)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, dict(models=self.models, **settings))

    def _check(self, earlier: dict, settings: dict) -> None:
        for name, description in earlier.pop('models').items():
            found = f'{self.folder} has results of {name}'
            if name not in self.models:
                raise InputError(f'{found}, which is not asked for: add it, or {OTHER_FOLDER}')
            for part in ('config', 'checkpoint'):
                if description[f'{part}_sha256'] != self.models[name][f'{part}_sha256']:
                    raise InputError(f'{found} with another {part} ({description[part]}): {OTHER_FOLDER}')
        for key, value in earlier.items():
            new = settings.get(key)
            if value != new and not (isinstance(value, list) and isinstance(new, list) and set(value) <= set(new)):
                values = ' '.join(map(str, value)) if isinstance(value, list) else value
                option = f'--{key.replace("_", "-")} {values}'
                raise InputError(f'{self.folder} has results with {option}: ask for the same, or {OTHER_FOLDER}')

    def load(self, model: str, condition: Condition) -> dict[str, float] | None:
        """The metrics of a test; None if it was not done yet."""
        path = self._path(model, condition)
        if not path.exists():
            return None
        metrics = read_json(path, 'remove it, and the test is done again')
        return {key: math.nan if value is None else value for key, value in metrics.items()}

    def save(self, model: str, condition: Condition, metrics: dict[str, float]) -> None:
        path = self._path(model, condition)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, metrics)

    def _path(self, model: str, condition: Condition) -> Path:
        return self.folder / model / f'{file_name(condition)}.json'


def file_name(condition: Condition) -> str:
    """A condition in names of files: 'pgd_4_255' for ('pgd', '4/255')."""
    return '{}_{}'.format(*condition).replace('/', '_')


def _sha256_of(state_dict: dict[str, Tensor]) -> str:
    """The hash of weights, whatever file or URL they are from."""
    digest = hashlib.sha256()
    for name, value in sorted(state_dict.items()):
        digest.update(f'{name} {value.dtype} {tuple(value.shape)}'.encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def insert_corruption(config: Config, corruption: str, severity: int) -> None:
    """Corrupt the images of a config's test set.

    Right after they are loaded, or for a classifier after they are resized and cropped, as those of ImageNet-C are.
    """
    kind = image_kind(config)
    if kind:
        raise InputError(f'corruptions are for RGB images in 8 bits: those of {config.filename} have {kind}')
    for dataset in find_datasets(config.test_dataloader):
        types = [step['type'] for step in dataset.get('pipeline', [])]
        loaders = [index for index, name in enumerate(types) if name.endswith('ImageFromFile')]
        if len(loaders) != 1:
            raise InputError(f'the test pipeline must load images once, by LoadImageFromFile: {len(loaders)} found')
        place = types.index('PackInputs') if 'PackInputs' in types else loaders[0] + 1
        dataset.pipeline.insert(place, dict(type='bioattn_mm.Corrupt', corruption=corruption, severity=severity))


def summarize(clean: float, corrupted: dict[Condition, float], on_imagenet: bool = False) -> dict[str, float]:
    """Mean and relative performance under corruption: `clean`, `mPC`, and `rPC`, NaN if `clean` is 0.

    Of top-1 accuracies on ImageNet, with all corruptions and severities of ImageNet-C, also `mCE` in percent.
    """
    mean = float(np.mean(list(corrupted.values())))
    summary = dict(clean=clean, mPC=mean, rPC=mean / clean if clean else math.nan)
    error = mean_corruption_error(corrupted) if on_imagenet else None
    return summary if error is None else dict(summary, mCE=error)
