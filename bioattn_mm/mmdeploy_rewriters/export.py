"""Export a config and a checkpoint to the files of a runtime with mmdeploy."""

import hashlib
import json
import logging
import traceback
from pathlib import Path

import numpy as np
from mmdeploy.apis import build_task_processor, torch2onnx, torch2torchscript
from mmdeploy.apis.utils import to_backend
from mmdeploy.backend.base import get_backend_manager
from mmdeploy.backend.sdk.export_info import export2SDK
from mmdeploy.utils import IR, get_backend, get_input_shape, get_ir_config
from mmengine.config import Config
from torch import Tensor

from ..checkpoints import check_fit, weights_of, write_checkpoint
from ..errors import InputError
from ..export.pipeline import FILE, postprocessing_of, preprocessing_of, write_pipeline
from ..export.verification import PYTORCH, Verification, at_one_size, scale_in_testing

EXPORTERS = {IR.ONNX.value: torch2onnx, IR.TORCHSCRIPT.value: torch2torchscript}


def check_runtime(deploy_config: Config) -> None:
    """Raise an `InputError` if the runtime that a deploy config exports for is not installed."""
    backend = get_backend(deploy_config).value
    if not get_backend_manager(backend).is_available():
        raise InputError(f'the deploy config exports for {backend}, which is not installed: install it first')


def has_panoptic_head(config: Config) -> bool:
    """Whether a model is mmdet's Mask2Former, of instance or of panoptic segmentation."""
    return 'panoptic_fusion_head' in config.model


def model_type_of(config: Config) -> str:
    """mmdeploy's name of the exported model with what comes after the network."""
    return 'panoptic_end2end' if has_panoptic_head(config) else 'end2end'


def check_kind(config: Config, deploy_config: Config) -> None:
    """Raise an `InputError` if a deploy config is for Mask2Former in mmdet and the model is not, or the reverse."""
    found = deploy_config.codebase_config.get('model_type', 'end2end')
    if found != model_type_of(config):
        needed = (
            'one of configs/deploy/panoptic-seg_*' if has_panoptic_head(config) else 'another one of configs/deploy'
        )
        raise InputError(
            f'{Path(deploy_config.filename).name} does not export {config.model.type} of {config.filename}: take '
            f'{needed}'
        )


def inference_checkpoint(path: str, checkpoint: dict, own: dict[str, Tensor]) -> dict:
    """The part of a checkpoint that inference needs, in the form in which OpenMMLab publishes checkpoints.

    Args:
        path: File or URL it was read from, for messages.
        checkpoint: What was read.
        own: The state dict of the model.

    Returns:
        The model's weights under `state_dict`, and under `meta` the classes and palette if the checkpoint has them.

    Raises:
        InputError: The weights belong to another model.
    """
    weights = weights_of(path, checkpoint)
    check_fit(path, weights, own)
    meta = checkpoint.get('meta') or {}
    return dict(
        meta={key: value for key, value in meta.items() if key == 'dataset_meta'},
        # Cloned, because a view would be saved with the whole tensor that it is a part of.
        state_dict={name: weights[name].clone() for name in own},
    )


def publish(checkpoint: dict, folder: Path, name: str) -> Path:
    """Write a checkpoint to `folder/name-DIGITS.pth`; DIGITS are the first 8 of its SHA-256."""
    path = folder / f'{name}.pth'
    write_checkpoint(checkpoint, path)
    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path.rename(folder / f'{name}-{digits}.pth')


def export(config: Config, deploy_config: Config, checkpoint: Path, folder: Path) -> list[str]:
    """Export a model with mmdeploy, and write its `deploy.json`, `pipeline.json` and `detail.json`.

    Args:
        config: Config of the model, for mmdet or mmseg.
        deploy_config: Config of mmdeploy, such as those of configs/deploy.
        checkpoint: Weights of the model (see `inference_checkpoint`).
        folder: Folder to write to.

    Returns:
        Paths of the files that the runtime loads.

    Raises:
        InputError: mmdeploy cannot export the model; `error.log` in the folder has the whole traceback.
    """
    backend, ir = get_backend(deploy_config).value, get_ir_config(deploy_config)
    device = 'cuda:0' if backend == 'tensorrt' else 'cpu'
    image = example_image(config, deploy_config)
    try:
        # Positional arguments, because the two functions name them differently.
        EXPORTERS[ir.type](image, str(folder), ir.save_file, deploy_config, config, str(checkpoint), device)
    except Exception as error:
        log = folder / 'error.log'
        log.write_text(traceback.format_exc(), encoding='utf-8')
        # The first line says what failed; a graph may follow.
        reason = [line for line in str(error).splitlines() if line.strip()] or ['']
        raise InputError(f'mmdeploy cannot export this model: {type(error).__name__}: {reason[0]} ({log})') from error
    files = to_backend(
        backend, [str(folder / ir.save_file)], str(folder), deploy_config, log_level=logging.WARNING, device=device
    )
    export2SDK(deploy_config, config, str(folder), pth=str(checkpoint), device=device)
    return list(files)


def description_of(config: Config, classes: tuple[str, ...], palette: list[tuple[int, int, int]]) -> dict:
    """What `bioattn_mm.runtime` has to know of a model besides its file.

    Args:
        config: Config of the model, with the mode in which a segmentor takes images.
        classes: Names, in the order of their indices.
        palette: R, G and B of each class.

    Raises:
        InputError: Its test pipeline has a step that is none of those of `pipeline.json`.
    """
    task = 'panoptic' if has_panoptic_head(config) else 'detection' if is_detector(config) else 'segmentation'
    return dict(
        task=task,
        architecture=config.model.type,
        preprocessing=preprocessing_of(config),
        postprocessing=postprocessing_of(config, task),
        classes=classes,
        palette=palette,
    )


def describe(description: dict, folder: Path, model: str) -> None:
    """Add to mmdeploy's `pipeline.json` what `bioattn_mm.runtime` reads; mmdeploy's own part is its key `pipeline`.

    Args:
        description: Result of `description_of`.
        folder: Folder of the export.
        model: Name of the exported file.
    """
    own = dict(model=model, **description)
    write_pipeline(folder, dict(own, **json.loads((folder / FILE).read_text(encoding='utf-8'))))


def is_detector(config: Config) -> bool:
    """Whether a config is for mmdet; the others are for mmseg."""
    return config.default_scope == 'mmdet'


def verification_of(
    config: Config, deploy_config: Config, checkpoint: Path, exported: dict[str, list[str]], num_images: int
) -> Verification:
    """The comparison of exported models with the one in PyTorch.

    Args:
        config: Config of the model. Segmentors take whole images instead of sliding windows, as mmdeploy's do.
        deploy_config: Config of the export.
        checkpoint: Weights of the model in PyTorch.
        exported: For each exported model its name and its files.
        num_images: As in `Verification`.
    """
    config = at_one_size(config, get_input_shape(deploy_config))
    task = build_task_processor(config, deploy_config, 'cpu')
    models = {PYTORCH: task.build_pytorch_model(str(checkpoint))}
    for name, files in exported.items():
        models[name] = task.build_backend_model(files, task.update_data_preprocessor)
    return Verification(config, models, num_images)


def example_image(config: Config, deploy_config: Config) -> np.ndarray:
    """A noise image to trace with: of the deploy config's size, or a square with the short side of testing.

    Returns:
        uint8 (H, W, channels).
    """
    width, height = get_input_shape(deploy_config) or (min(scale_in_testing(config)),) * 2
    channels = config.model.backbone.get('in_channels', 3)
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
