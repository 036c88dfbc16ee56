"""The files of an export: a model in one of the formats, and `pipeline.json`."""

from pathlib import Path

import torch
from mmengine.config import Config
from torch import nn

from ..errors import InputError
from .networks import Features, check_any_size, network_of
from .pipeline import postprocessing_of, preprocessing_of, write_pipeline
from .program import DIVISOR, EXAMPLE, SIDES, trace, trace_portable

FILES = dict(pt2='model.pt2', onnx='end2end.onnx', aoti='model.aoti.pt2', openvino='model.xml')
PACKAGES = dict(
    onnx=('onnx', 'onnxscript', 'onnxslim'), aoti=(), pt2=(), openvino=('onnx', 'onnxscript', 'onnxslim', 'openvino')
)
# Sizes, in pixels, at which the graph for any size is compared with the model after an export, as batch, height, width.
CHECKED = ((1, 224, 224), (2, 96, 160))


def check_packages(kind: str) -> None:
    """Raise an `InputError` if a package that a format needs is not installed."""
    for package in PACKAGES[kind]:
        try:
            __import__(package)
        except ImportError as error:
            raise InputError(
                f"--to {kind} needs {package}, which is not installed: pip install 'bioattn_mm[export]'"
            ) from error


def export(
    model: nn.Module,
    config: Config,
    kind: str,
    folder: Path,
    size: tuple[int, int] | None = None,
    classes: tuple[str, ...] = (),
    palette: list[tuple[int, int, int]] = (),
    backbone: bool = False,
) -> list[Path]:
    """Export a model through `torch.export`.

    Args:
        model: Of mmseg or mmpretrain, with its weights.
        config: Its config.
        kind: 'pt2', 'onnx', 'aoti' or 'openvino'.
        folder: Folder to write to, which is there.
        size: (height, width) in pixels of the images, one at a time; None for any.
        classes: Names, in the order of their indices.
        palette: R, G and B of each class.
        backbone: Export the backbone alone; then the model may be mmdet's, too.

    Returns:
        The model's file, then `pipeline.json`.

    Raises:
        InputError: The model cannot be exported so; nothing is written.
    """
    network = Features(model.backbone).eval() if backbone else network_of(model, config)
    if size is None:
        check_any_size(model)
    preprocessing = preprocessing_of(config)
    path = folder / FILES[kind]
    is_portable = kind in ('onnx', 'openvino')
    program = (trace_portable if is_portable else trace)(network, size)
    if is_portable:
        from .onnx_file import write_onnx

        onnx = path.with_suffix('.onnx')
        write_onnx(program, network.names, onnx, any_size=size is None)
        if kind == 'openvino':
            import openvino

            openvino.save_model(openvino.convert_model(onnx), path, compress_to_fp16=False)
            onnx.unlink()
    elif kind == 'pt2':
        torch.export.save(program, path)
    else:
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    document = dict(
        model=path.name,
        task=network.task,
        architecture=type(model).__name__,
        inputs=[_input(size, is_portable)],
        outputs=[dict(name=name, dtype='float32') for name in network.names],
        preprocessing=preprocessing,
        postprocessing={} if backbone else postprocessing_of(config, network.task),
        classes=list(classes),
        palette=[list(colour) for colour in palette],
    )
    return [path, write_pipeline(folder, document)]


def _input(size: tuple[int, int] | None, is_portable: bool) -> dict:
    """The entry of the input in `pipeline.json`."""
    entry = dict(name='input' if is_portable else 'image', dtype='float32')
    if size is not None:
        return dict(entry, shape=[1, 3, *size], minimum=min(size), multiple=1)
    multiple = DIVISOR if is_portable else 1
    return dict(entry, shape=['batch', 3, 'height', 'width'], minimum=SIDES[0], multiple=multiple)
