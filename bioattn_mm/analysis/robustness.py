"""Tests on corrupted images, kept one by one, and what they add up to.

After Michaelis et al. 2019, "Benchmarking robustness in object detection": the mean performance under corruption
(mPC), `1 / (corruptions severities) sum P_cs`, and the relative one (rPC), `mPC / P_clean`.
"""

import contextlib
import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from ..checkpoints import check_fit
from ..cli.command_line import find_datasets
from ..errors import InputError
from ..files import atomic_write

# Name and severity under which the test on the images as they are is kept.
CLEAN = ('none', 0)


@dataclass
class Model:
    """A trained model.

    Attributes:
        config: Its config.
        checkpoint: File of its weights.
        state_dict: The weights.
    """

    config: Config
    checkpoint: str
    state_dict: dict[str, Tensor]

    def describe(self) -> dict[str, str]:
        """What tells it from others: its files, and hashes of what is in them, the config after all overrides."""
        return dict(
            config=str(self.config.filename),
            checkpoint=self.checkpoint,
            config_sha256=hashlib.sha256(self.config.pretty_text.encode()).hexdigest(),
            checkpoint_sha256=hashlib.sha256(Path(self.checkpoint).read_bytes()).hexdigest(),
        )


class Results:
    """Metrics of each model, corruption and severity, a file for each.

    Args:
        folder: Where they are kept.
        models: `Model.describe` of each, by name.
        corruptions: Those that are asked for.
        severities: The same.

    Raises:
        InputError: The folder has results of other models, or more than are asked for.
    """

    def __init__(
        self, folder: Path, models: dict[str, dict[str, str]], corruptions: list[str], severities: list[int]
    ) -> None:
        self.folder = folder
        self.models = models
        settings = folder / 'settings.json'
        if settings.exists():
            self._check(json.loads(settings.read_text()), corruptions, severities)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(settings, dict(models=models, corruptions=list(corruptions), severities=list(severities)))

    def _check(self, earlier: dict, corruptions: list[str], severities: list[int]) -> None:
        hint = 'name another folder for --out'
        for name, description in earlier['models'].items():
            if name not in self.models:
                raise InputError(f'{self.folder} has results of {name}, which is not asked for: add it, or {hint}')
            for part in ('config', 'checkpoint'):
                if description[f'{part}_sha256'] != self.models[name][f'{part}_sha256']:
                    raise InputError(
                        f'{self.folder} has results of {name} with another {part} ({description[part]}): {hint}'
                    )
        for option, asked in (('corruptions', corruptions), ('severities', severities)):
            missing = [str(value) for value in earlier[option] if value not in asked]
            if missing:
                raise InputError(f'{self.folder} has --{option} {" ".join(missing)} too: ask for them, or {hint}')

    def load(self, model: str, corruption: str, severity: int) -> dict[str, float] | None:
        """The metrics of a test, None where it was not done yet."""
        path = self._path(model, corruption, severity)
        return json.loads(path.read_text()) if path.exists() else None

    def save(self, model: str, corruption: str, severity: int, metrics: dict[str, float]) -> None:
        path = self._path(model, corruption, severity)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, metrics)

    def _path(self, model: str, corruption: str, severity: int) -> Path:
        return self.folder / model / f'{corruption}_{severity}.json'


def write_whole(path: Path, document: dict) -> None:
    """Write a JSON file, which is there as a whole or not at all."""
    with atomic_write(path) as file:
        file.write((json.dumps(document, indent=1) + '\n').encode())


def measure_corrupted(
    model: Model, corruption: str, severity: int, work_dir: Path, advance: Callable[[float], None]
) -> dict[str, float]:
    """Test a model on corrupted images of its test set.

    Args:
        model: The model.
        corruption: A name that `bioattn_mm.Corrupt` knows, or 'none'.
        severity: 1 to 5.
        work_dir: Folder for logs.
        advance: Is called after each batch with the part of the images in it.

    Returns:
        The metrics of the config's evaluator.

    Raises:
        InputError: The checkpoint does not fit the config, or the test pipeline loads no images.
    """
    config = copy.deepcopy(model.config)
    if (corruption, severity) != CLEAN:
        insert_corruption(config, corruption, severity)
    config.work_dir = str(work_dir)
    config.log_level = 'WARNING'
    config.load_from, config.resume = None, False
    config.experiment_name = f'{corruption}_{severity}'
    runner = Runner.from_cfg(config)
    check_fit(model.checkpoint, model.state_dict, runner.model.state_dict())
    runner.model.load_state_dict(model.state_dict)
    runner.register_hook(_Advance(advance))
    # COCO's evaluator prints.
    with open(work_dir / 'evaluation.log', 'a') as log, contextlib.redirect_stdout(log):
        metrics = runner.test()
    # Some are numbers of numpy's.
    return {name: float(value) for name, value in metrics.items()}


def insert_corruption(config: Config, corruption: str, severity: int) -> None:
    """Corrupt the images of a config's test set, right after they are loaded.

    Raises:
        InputError: The test pipeline has not one step that loads them.
    """
    for dataset in find_datasets(config.test_dataloader):
        loaders = [i for i, step in enumerate(dataset.get('pipeline', [])) if step['type'].endswith('ImageFromFile')]
        if len(loaders) != 1:
            raise InputError(f'the test pipeline must load images once, by LoadImageFromFile: {len(loaders)} found')
        step = dict(type='bioattn_mm.Corrupt', corruption=corruption, severity=severity)
        dataset.pipeline.insert(loaders[0] + 1, step)


class _Advance(Hook):
    """Progress of a test."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        self.advance = advance

    def after_test_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        self.advance(1 / len(runner.test_dataloader))


def summarize(clean: float, corrupted: dict[tuple[str, int], float]) -> dict[str, float]:
    """Mean and relative performance under corruption.

    Args:
        clean: Performance on the images as they are.
        corrupted: Performance by corruption and severity.

    Returns:
        `clean`, `mPC`, and `rPC`, from 0 to 1, NaN where `clean` is 0.
    """
    mean = float(np.mean(list(corrupted.values())))
    return dict(clean=clean, mPC=mean, rPC=mean / clean if clean else float('nan'))
