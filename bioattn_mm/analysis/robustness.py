"""Tests on corrupted images, whose results are kept one by one, and their means.

After Michaelis et al. 2019, "Benchmarking robustness in object detection": the mean performance under corruption
(mPC), `1 / (corruptions * severities) * sum P_cs`, and the relative one (rPC), `mPC / P_clean`.
"""

import copy
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mmengine.config import Config

from ..checkpoints import fetch
from ..cli.pipelines import find_datasets
from ..cli.reports import write_json
from ..errors import InputError
from .evaluation import Advance, TrainedModel

# Corruption and severity of the test on the images as they are.
CLEAN = ('none', 0)


class Results:
    """Metrics of each model, corruption and severity, in a file for each, so that an interrupted run can go on.

    Args:
        folder: Folder of the files. It may hold earlier results of the same models.
        models: The models by name.
        corruptions: Names of all corruptions of the run.
        severities: All severities of the run.

    Attributes:
        models: For each model its files and the hashes of their contents, of the config after all overrides.

    Raises:
        InputError: The folder has results of other models, or of corruptions and severities that are not asked for.
    """

    def __init__(
        self, folder: Path, models: dict[str, TrainedModel], corruptions: list[str], severities: list[int]
    ) -> None:
        self.folder = folder
        self.models = {name: _describe(model) for name, model in models.items()}
        settings = dict(models=self.models, corruptions=list(corruptions), severities=list(severities))
        path = folder / 'settings.json'
        if path.exists():
            self._check(json.loads(path.read_text()), settings)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)

    def _check(self, earlier: dict, settings: dict) -> None:
        hint = 'name another folder for --out'
        for name, description in earlier['models'].items():
            if name not in self.models:
                raise InputError(f'{self.folder} has results of {name}, which is not asked for: add it, or {hint}')
            for part in ('config', 'checkpoint'):
                if description[f'{part}_sha256'] != self.models[name][f'{part}_sha256']:
                    raise InputError(
                        f'{self.folder} has results of {name} with another {part} ({description[part]}): {hint}'
                    )
        for option in ('corruptions', 'severities'):
            missing = [str(value) for value in earlier[option] if value not in settings[option]]
            if missing:
                raise InputError(f'{self.folder} has --{option} {" ".join(missing)} too: ask for them, or {hint}')

    def load(self, model: str, corruption: str, severity: int) -> dict[str, float] | None:
        """The metrics of a test; None if it was not done yet."""
        path = self._path(model, corruption, severity)
        if not path.exists():
            return None
        return {name: math.nan if value is None else value for name, value in json.loads(path.read_text()).items()}

    def save(self, model: str, corruption: str, severity: int, metrics: dict[str, float]) -> None:
        """Keep the metrics of a test."""
        path = self._path(model, corruption, severity)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, metrics)

    def _path(self, model: str, corruption: str, severity: int) -> Path:
        return self.folder / model / f'{corruption}_{severity}.json'


def _describe(model: TrainedModel) -> dict[str, str]:
    return dict(
        config=str(model.config.filename),
        checkpoint=model.checkpoint,
        config_sha256=hashlib.sha256(model.config.pretty_text.encode()).hexdigest(),
        checkpoint_sha256=hashlib.sha256(Path(fetch(model.checkpoint)).read_bytes()).hexdigest(),
    )


def measure_corrupted(
    model: TrainedModel, corruption: str, severity: int, work_dir: Path, advance: Callable[[float], None]
) -> dict[str, float]:
    """Test a model on corrupted images of its test set.

    Args:
        model: The model.
        corruption: A name that `bioattn_mm.Corrupt` knows, or 'none'.
        severity: 1 to 5; 0 for 'none'.
        work_dir: Folder for logs.
        advance: Called after each batch with its share of all batches.

    Returns:
        The metrics of the config's evaluator.

    Raises:
        InputError: The checkpoint does not fit the config, or the test pipeline does not load images in one step.
    """
    config = copy.deepcopy(model.config)
    if (corruption, severity) != CLEAN:
        insert_corruption(config, corruption, severity)
    config.work_dir = str(work_dir)
    config.experiment_name = f'{corruption}_{severity}'
    return model.test(config, Advance(advance))


def insert_corruption(config: Config, corruption: str, severity: int) -> None:
    """Corrupt the images of a config's test set, right after they are loaded.

    Raises:
        InputError: The test pipeline does not load images in exactly one step.
    """
    for dataset in find_datasets(config.test_dataloader):
        loaders = [i for i, step in enumerate(dataset.get('pipeline', [])) if step['type'].endswith('ImageFromFile')]
        if len(loaders) != 1:
            raise InputError(f'the test pipeline must load images once, by LoadImageFromFile: {len(loaders)} found')
        step = dict(type='bioattn_mm.Corrupt', corruption=corruption, severity=severity)
        dataset.pipeline.insert(loaders[0] + 1, step)


def summarize(clean: float, corrupted: dict[tuple[str, int], float]) -> dict[str, float]:
    """Mean and relative performance under corruption.

    Args:
        clean: Performance on the images as they are.
        corrupted: Performance by corruption and severity.

    Returns:
        `clean`, `mPC`, and `rPC`, a fraction; NaN if `clean` is 0.
    """
    mean = float(np.mean(list(corrupted.values())))
    return dict(clean=clean, mPC=mean, rPC=mean / clean if clean else math.nan)
