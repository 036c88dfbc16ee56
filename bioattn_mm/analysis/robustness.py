"""Tests on corrupted or attacked images, whose results are kept one by one, and their means.

After Michaelis et al. 2019, "Benchmarking robustness in object detection": the mean performance under corruption
(mPC), `1 / (corruptions * severities) * sum P_cs`, and the relative one (rPC), `mPC / P_clean`.
"""

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook

from ..checkpoints import fetch
from ..datasets.imagenet import corruption_folder, mean_corruption_error
from ..errors import InputError
from ..files import read_json, write_json
from ..run_config.imagenet import set_test_set
from ..run_config.pipelines import find_datasets, image_kind
from .attacks import Attack, AttackHook, check_attackable, fgsm, pgd
from .evaluation import Advance, TrainedModel

# Name and level of the test on the images as they are.
CLEAN = ('none', 0)
OTHER_FOLDER = 'name another folder for --out'

# What is done to the images of a test, such as ('fog', 3) or ('pgd', '4/255').
Condition = tuple[str, int | str]


@dataclass(frozen=True)
class Corruptions:
    """Tests on the images of the test set, corrupted as ImageNet-C is, or on the files of ImageNet-C.

    Attributes:
        names: Names of corruptions.
        levels: Severities, 1 to 5.
        imagenet_c: Folder of ImageNet-C, for classifiers of ImageNet-1k; None to corrupt the config's own test set.
    """

    names: list[str]
    levels: list[int]
    imagenet_c: str | None = None

    @property
    def settings(self) -> dict:
        """The settings by the tool's options, to be compared with those of earlier results."""
        return dict(corruptions=self.names, severities=self.levels, imagenet_c=self.imagenet_c)

    @property
    def conditions(self) -> list[Condition]:
        """Every corruption with every severity."""
        return list(product(self.names, self.levels))

    def change(self, config: Config, name: str, level: int) -> list[Hook]:
        """Let a config test on corrupted images.

        Args:
            config: Changed in place.
            name: A corruption.
            level: Its severity.

        Returns:
            Hooks that the Runner needs: none.

        Raises:
            InputError: The config's pipeline or model does not fit, or there is no such folder of ImageNet-C.
        """
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
    """Tests on adversarial images of the test set.

    Attributes:
        names: 'fgsm', 'pgd' or both.
        levels: Epsilons as 'N/255', where N is the largest change of a pixel value.
        steps: Number of PGD's steps.
        step_size: Change of a pixel value in one of them; None for 2.5 epsilon / steps.
        restarts: Number of PGD's restarts.
    """

    names: list[str]
    levels: list[str]
    steps: int = 5
    step_size: float | None = None
    restarts: int = 1

    @property
    def settings(self) -> dict:
        """The settings by the tool's options, to be compared with those of earlier results."""
        return dict(
            attack=self.names,
            epsilon=self.levels,
            steps=self.steps,
            step_size=self.step_size,
            restarts=self.restarts,
        )

    @property
    def conditions(self) -> list[Condition]:
        """Every attack with every epsilon."""
        return list(product(self.names, self.levels))

    def attack(self, name: str, level: str) -> Attack:
        """The attack of a name and an epsilon."""
        epsilon = float(level.removesuffix('/255'))
        return fgsm(epsilon) if name == 'fgsm' else pgd(epsilon, self.steps, self.step_size, self.restarts)

    def change(self, config: Config, name: str, level: str) -> list[Hook]:
        """Hooks that let a Runner of a config test on adversarial images.

        Args:
            config: Stays as it is.
            name: An attack.
            level: Its epsilon.

        Raises:
            InputError: The model or its images cannot be attacked.
        """
        check_attackable(config)
        return [AttackHook(self.attack(name, level))]


class Results:
    """Metrics of each model and condition, in a file for each, so that an interrupted run can go on.

    Args:
        folder: Folder of the files. It may hold earlier results of the same models.
        models: The models by name.
        settings: Settings of the run by option. Lists, such as names of corruptions, must have all earlier entries;
            all else must be as it was.

    Attributes:
        models: For each model its files and the hashes of their contents, of the config after all overrides.

    Raises:
        InputError: The folder has results of other models or settings, or some that are not asked for.
    """

    def __init__(self, folder: Path, models: dict[str, TrainedModel], settings: dict) -> None:
        self.folder = folder
        self.models = {name: _describe(model) for name, model in models.items()}
        path = folder / 'settings.json'
        if path.exists():
            self._check(read_json(path, OTHER_FOLDER, models=dict), settings)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, dict(models=self.models, **settings))

    def _check(self, earlier: dict, settings: dict) -> None:
        for name, description in earlier.pop('models').items():
            if name not in self.models:
                raise InputError(
                    f'{self.folder} has results of {name}, which is not asked for: add it, or {OTHER_FOLDER}'
                )
            for part in ('config', 'checkpoint'):
                if description[f'{part}_sha256'] != self.models[name][f'{part}_sha256']:
                    raise InputError(
                        f'{self.folder} has results of {name} with another {part} ({description[part]}): '
                        f'{OTHER_FOLDER}'
                    )
        for key, value in earlier.items():
            option = f'--{key.replace("_", "-")}'
            if key not in settings:
                raise InputError(f'{self.folder} has results of another kind, with {option}: {OTHER_FOLDER}')
            if isinstance(value, list):
                missing = [str(item) for item in value if item not in settings[key]]
                if missing:
                    raise InputError(
                        f'{self.folder} has {option} {" ".join(missing)} too: ask for them, or {OTHER_FOLDER}'
                    )
            elif value != settings[key]:
                raise InputError(
                    f'{self.folder} has results with {option} {value}, not {settings[key]}: {OTHER_FOLDER}'
                )

    def load(self, model: str, name: str, level: int | str) -> dict[str, float] | None:
        """The metrics of a test; None if it was not done yet."""
        path = self._path(model, name, level)
        if not path.exists():
            return None
        return {
            key: math.nan if value is None else value
            for key, value in read_json(path, 'remove it, and the test is done again').items()
        }

    def values(self, metric: str, conditions: list[Condition]) -> dict[str, dict[Condition, float]]:
        """A metric by model and condition, of tests that are done."""
        # An evaluator that gets no predictions reports no metrics.
        return {name: {pair: self.load(name, *pair).get(metric, 0.0) for pair in conditions} for name in self.models}

    def save(self, model: str, name: str, level: int | str, metrics: dict[str, float]) -> None:
        """Keep the metrics of a test."""
        path = self._path(model, name, level)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, metrics)

    def _path(self, model: str, name: str, level: int | str) -> Path:
        return self.folder / model / f'{name}_{level}.json'.replace('/', '_')


def _describe(model: TrainedModel) -> dict[str, str]:
    return dict(
        config=str(model.config.filename),
        checkpoint=model.checkpoint,
        config_sha256=hashlib.sha256(model.config.pretty_text.encode()).hexdigest(),
        checkpoint_sha256=_sha256_of(model),
    )


def _sha256_of(model: TrainedModel) -> str:
    """The hash of a checkpoint's file; of one that is a URL or a folder, that of its weights."""
    file = Path(fetch(model.checkpoint))
    if file.is_file():
        return hashlib.sha256(file.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict.items()):
        digest.update(f'{name} {value.dtype} {tuple(value.shape)}'.encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def measure(
    model: TrainedModel,
    study: Corruptions | Attacks,
    condition: Condition,
    work_dir: Path,
    advance: Callable[[float], None],
) -> dict[str, float]:
    """Test a model on changed images of its test set.

    Args:
        model: The model.
        study: What changes the images.
        condition: One of the study's conditions, or `CLEAN`.
        work_dir: Folder for logs.
        advance: Called after each batch with its share of all batches.

    Returns:
        The metrics of the config's evaluator.

    Raises:
        InputError: The checkpoint does not fit the config, or the config does not fit the study.
    """
    config = copy.deepcopy(model.config)
    hooks = [] if condition == CLEAN else study.change(config, *condition)
    config.work_dir = str(work_dir)
    config.experiment_name = '{}_{}'.format(*condition).replace('/', '_')
    return model.test(config, Advance(advance), *hooks)


def insert_corruption(config: Config, corruption: str, severity: int) -> None:
    """Corrupt the images of a config's test set.

    Right after they are loaded, or for a classifier after they are resized and cropped, as those of ImageNet-C are.

    Raises:
        InputError: The images are not RGB in 8 bits, or the test pipeline does not load them in exactly one step.
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
    """Mean and relative performance under corruption.

    Args:
        clean: Performance on the images as they are.
        corrupted: Performance by corruption and severity.
        on_imagenet: Whether these are top-1 accuracies on ImageNet.

    Returns:
        `clean`, `mPC`, and `rPC`, a fraction, NaN if `clean` is 0; on ImageNet, with all corruptions and severities
        of ImageNet-C, also `mCE` in percent.
    """
    mean = float(np.mean(list(corrupted.values())))
    summary = dict(clean=clean, mPC=mean, rPC=mean / clean if clean else math.nan)
    error = mean_corruption_error(corrupted) if on_imagenet else None
    return summary if error is None else dict(summary, mCE=error)
