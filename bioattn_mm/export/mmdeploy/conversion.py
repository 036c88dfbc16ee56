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

from ...checkpoints import write_checkpoint
from ...errors import InputError, first_line
from ...training.config.pipelines import name_host_loading
from ...training.installed import find_config
from ..pipeline import FILE, description_of, write_pipeline
from ..verification import PYTORCH, Verification, at_one_size, scale_in_testing

EXPORTERS = {IR.ONNX.value: torch2onnx, IR.TORCHSCRIPT.value: torch2torchscript}


def read_deploy_config(path: str) -> Config:
    """Read a config of mmdeploy; an `InputError` if it is none, or if what it exports for is not installed."""
    path = find_config(path)
    if not Path(path).is_file():
        raise InputError(f'deploy config not found: {path}')
    config = Config.fromfile(path)
    absent = [key for key in ('ir_config', 'backend_config', 'codebase_config') if key not in config]
    if absent:
        raise InputError(f'{path} is no deploy config of mmdeploy: it has no {", ".join(absent)}')
    backend = get_backend(config).value
    if not get_backend_manager(backend).is_available():
        raise InputError(f'the deploy config exports for {backend}, which is not installed: install it first')
    return config


def has_panoptic_head(config: Config) -> bool:
    """Whether a model is mmdet's Mask2Former, of instance or of panoptic segmentation."""
    return 'panoptic_fusion_head' in config.model


def check_kind(config: Config, deploy_config: Config) -> None:
    """Raise an `InputError` if a deploy config is for Mask2Former in mmdet and the model is not, or the reverse."""
    is_panoptic = has_panoptic_head(config)
    if is_panoptic != (deploy_config.codebase_config.get('model_type', 'end2end') == 'panoptic_end2end'):
        needed = 'one of configs/deploy/panoptic-seg_*' if is_panoptic else 'another one of configs/deploy'
        raise InputError(
            f'{Path(deploy_config.filename).name} does not export {config.model.type} of {config.filename}: take '
            f'{needed}'
        )


def publish(weights: dict[str, Tensor], dataset_meta: dict, folder: Path, name: str) -> Path:
    """Write weights to `folder/name-DIGITS.pth`, as OpenMMLab does; DIGITS are the first 8 of the SHA-256."""
    path = folder / f'{name}.pth'
    meta = dict(dataset_meta=dataset_meta) if dataset_meta else {}
    # Cloned, because a view would be saved with the whole tensor that it is a part of.
    write_checkpoint(dict(meta=meta, state_dict={key: value.clone() for key, value in weights.items()}), path)
    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path.rename(folder / f'{name}-{digits}.pth')


def export(
    config: Config,
    deploy_config: Config,
    weights: dict[str, Tensor],
    dataset_meta: dict,
    folder: Path,
    classes: tuple[str, ...],
    palette: list[tuple[int, int, int]],
) -> tuple[list[Path], Path]:
    """Export a model with mmdeploy, and write its `deploy.json`, `pipeline.json` and `detail.json`.

    Args:
        config: Config of the model, for mmdet or mmseg. Its segmentor takes whole images from now on.
        deploy_config: Config of mmdeploy, such as those of configs/deploy.
        weights: Of the model.
        dataset_meta: Classes and palette for the checkpoint that is written beside the model, if it has some.
        folder: Folder to write to, which may not be there yet.
        classes: Names, in the order of their indices.
        palette: R, G and B of each class.

    Returns:
        The files that the runtime loads, and the checkpoint.

    Raises:
        InputError: The test pipeline has a step that is none of those of `pipeline.json`, or mmdeploy cannot export
            the model; then `error.log` in the folder has the whole traceback.
    """
    task = 'detection' if config.default_scope == 'mmdet' else 'segmentation'
    task = 'panoptic' if has_panoptic_head(config) else task
    description = description_of(config, task, config.model.type, classes, palette)
    name_host_loading(config)
    if config.model.get('test_cfg', {}).get('mode') == 'slide':
        # The network alone: bioattn_mm.runtime slides the window, as pipeline.json says; mmdeploy's runner does not.
        config.model.test_cfg.mode = 'whole'
    backend, ir = get_backend(deploy_config).value, get_ir_config(deploy_config)
    device = 'cuda:0' if backend == 'tensorrt' else 'cpu'
    image = example_image(config, deploy_config)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = publish(weights, dataset_meta, folder, Path(config.filename).stem)
    try:
        # Positional arguments, because the two functions name them differently.
        EXPORTERS[ir.type](image, str(folder), ir.save_file, deploy_config, config, str(checkpoint), device)
    except Exception as error:
        log = folder / 'error.log'
        log.write_text(traceback.format_exc(), encoding='utf-8')
        # A graph may follow the first line.
        reason = f'{type(error).__name__}: {first_line(error)} ({log})'
        raise InputError(f'mmdeploy cannot export this model: {reason}') from error
    files = to_backend(
        backend, [str(folder / ir.save_file)], str(folder), deploy_config, log_level=logging.WARNING, device=device
    )
    export2SDK(deploy_config, config, str(folder), pth=str(checkpoint), device=device)
    # mmdeploy's own part of the file is its key `pipeline`.
    own = dict(model=Path(files[0]).name, **description)
    write_pipeline(folder, dict(own, **json.loads((folder / FILE).read_text(encoding='utf-8'))))
    return [Path(file) for file in files], checkpoint


def verification_of(
    config: Config, deploy_config: Config, checkpoint: Path, exported: dict[str, list[Path]], num_images: int
) -> Verification:
    """The comparison of the exported models, files by name, with the one in PyTorch; images are taken as a whole."""
    config = at_one_size(config, get_input_shape(deploy_config))
    task = build_task_processor(config, deploy_config, 'cpu')
    models = {PYTORCH: task.build_pytorch_model(str(checkpoint))}
    for name, files in exported.items():
        models[name] = task.build_backend_model([str(file) for file in files], task.update_data_preprocessor)
    return Verification(config, models, num_images)


def example_image(config: Config, deploy_config: Config) -> np.ndarray:
    """Noise to trace with, uint8 (H, W, channels): of the deploy config's size, or a square."""
    width, height = get_input_shape(deploy_config) or (min(scale_in_testing(config)),) * 2
    channels = config.model.get('backbone', {}).get('in_channels', 3)
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
