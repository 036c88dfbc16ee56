"""Running an exported ONNX file in the place of a detector or a segmentor of mmdet or mmseg."""

import logging

import onnxruntime
from mmdeploy.apis import build_task_processor
from mmdeploy.utils import get_root_logger
from mmengine.config import Config
from torch import nn

from ..errors import InputError
from . import tasks  # noqa: F401  registers the tasks that `build_task_processor` looks up
from .export import has_panoptic_head, model_type_of

CUDA = 'CUDAExecutionProvider'
# Outputs of detectors, and of mmdet's Mask2Former.
DETECTIONS, QUERIES = {'dets', 'labels'}, {'cls_logits', 'mask_logits'}


def default_device() -> str:
    """The device on which the installed onnxruntime can run a model: the GPU if there is one, else the CPU."""
    return 'cuda:0' if CUDA in onnxruntime.get_available_providers() else 'cpu'


def load_exported(path: str, config: Config, device: str) -> nn.Module:
    """Load an ONNX file of `tools/export.py` as a model that mmdet's or mmseg's inferencers can run.

    Args:
        path: The file.
        config: Config of the model that was exported, of mmdet or mmseg. Preprocessing, and what comes after the
            network, go by it.
        device: Device to compute on.

    Returns:
        mmdeploy's model of a backend: `test_step` takes what the PyTorch model's takes, and gives what it gives.

    Raises:
        InputError: The file is none of onnxruntime's, or is of another kind of model than the config, or onnxruntime
            does not compute on the device.
    """
    if device != 'cpu' and CUDA not in onnxruntime.get_available_providers():
        raise InputError(f'the installed onnxruntime does not compute on {device}: take --device cpu')
    get_root_logger().setLevel(logging.ERROR)
    try:
        # The session is asked for the names and types of the outputs alone.
        session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
    except Exception as error:
        raise InputError(f'onnxruntime cannot load {path}: {str(error).splitlines()[0]}') from error
    outputs = {output.name: output for output in session.get_outputs()}
    is_detector = config.default_scope == 'mmdet'
    expected = None if not is_detector else QUERIES if has_panoptic_head(config) else DETECTIONS
    if expected != next((names for names in (DETECTIONS, QUERIES) if names <= set(outputs)), None):
        raise InputError(f'{path} is not a model of {config.filename}: its outputs are {", ".join(outputs)}')
    task = dict(type='mmdet', task='ObjectDetection') if is_detector else dict(type='mmseg', task='Segmentation')
    # A segmentor exported with its argmax gives integers.
    with_argmax = not is_detector and 'int' in next(iter(outputs.values())).type
    deploy_config = Config(
        dict(
            ir_config=dict(
                type='onnx', input_names=[session.get_inputs()[0].name], output_names=list(outputs), input_shape=None
            ),
            backend_config=dict(type='onnxruntime'),
            codebase_config=dict(
                **task, model_type=model_type_of(config), with_argmax=with_argmax, post_processing=dict()
            ),
        )
    )
    task_processor = build_task_processor(config, deploy_config, device)
    return task_processor.build_backend_model([path], task_processor.update_data_preprocessor)


def exported_size(model: nn.Module) -> tuple[int | None, int | None, int | None]:
    """Batch size, height and width that an exported model takes; None where it takes any."""
    batch_size, _, *size = model.wrapper.sess.get_inputs()[0].shape
    return tuple(value if isinstance(value, int) else None for value in (batch_size, *size))
