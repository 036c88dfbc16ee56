"""The files of an export: a model in one of the formats, and `pipeline.json`."""

import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..errors import InputError
from ..runtime.backends import open_backend
from .networks import Features, check_any_size, network_of
from .pipeline import postprocessing_of, preprocessing_of, write_pipeline
from .program import DIVISOR, SIDES, trace, trace_portable

FILES = dict(pt2='model.pt2', onnx='end2end.onnx', aoti='model.aoti.pt2', openvino='model.xml')
FOR_ONNX = ('onnx', 'onnxscript', 'onnxslim', 'onnxruntime')
PACKAGES = dict(pt2=(), onnx=FOR_ONNX, aoti=(), openvino=(*FOR_ONNX, 'openvino'))
BACKENDS = {'.onnx': 'onnxruntime', '.xml': 'openvino'}
# Batch, height and width at which a file for any size is compared with the model: a single square image, and several
# that are not square, with the shortest side that a file takes; in ONNX and OpenVINO in multiples of 32.
CHECKED = ((1, 224, 224), (2, 64, 150))
CHECKED_PORTABLE = ((1, 224, 224), (2, 64, 160))
# Largest difference from the model, relative to its largest output, that is taken for rounding, which is about 1e-6.
# Where a threshold jumps, as in VARS, rounding changes outputs by more, in PyTorch, too: there the difference may be
# this many times that between PyTorch's own float32 and float64.
TOLERANCE = 1e-4
TIMES_OWN_ROUNDING = 10


def check_packages(kind: str) -> None:
    """Raise an `ImportError` if a package that a format needs is not installed, before anything is computed."""
    for package in PACKAGES[kind]:
        __import__(package)


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
        InputError: The model cannot be exported so, or the file gives other outputs than the model.
    """
    network = Features(model.backbone).eval() if backbone else network_of(model, config)
    if size is None:
        check_any_size(model)
    # A config that cannot be described is refused here, before minutes of tracing.
    preprocessing = preprocessing_of(config)
    postprocessing = {} if backbone else postprocessing_of(config, network.task)
    path = folder / FILES[kind]
    is_portable = kind in ('onnx', 'openvino')
    channels = config.model.backbone.get('in_channels', 3)
    trace_network = trace_portable if is_portable else functools.partial(trace, for_inductor=kind == 'aoti')
    program = trace_network(network, size, channels)
    _write(program, kind, path, network.names, any_size=size is None)
    sizes = [(1, *size)] if size else CHECKED_PORTABLE if is_portable else CHECKED
    check_outputs(network, runner_of(path), sizes, channels)
    document = dict(
        model=path.name,
        task=network.task,
        architecture=type(model).__name__,
        inputs=[_input(size, is_portable, channels)],
        outputs=[dict(name=name, dtype='float32') for name in network.names],
        preprocessing=preprocessing,
        postprocessing=postprocessing,
        classes=list(classes),
        palette=[list(colour) for colour in palette],
    )
    return [path, write_pipeline(folder, document)]


def _write(program: ExportedProgram, kind: str, path: Path, names: Sequence[str], any_size: bool) -> None:
    """Write a program as a file of a kind; `names` are those of its outputs."""
    if kind == 'pt2':
        torch.export.save(program, path)
    elif kind == 'aoti':
        compile_package(program, path)
    else:
        from .onnx_file import write_onnx

        onnx = path.with_suffix('.onnx')
        write_onnx(program, names, onnx, any_size)
        if kind == 'openvino':
            write_openvino(onnx, path)
            onnx.unlink()


def compile_package(program: ExportedProgram, path: Path) -> None:
    """Compile a program to a package of AOTInductor, which needs a C++ compiler.

    Raises:
        InputError: It cannot be compiled.
    """
    try:
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), '')
        raise InputError(
            f'AOTInductor cannot compile this model: {type(error).__name__}: {reason[:200]}; --size HEIGHTxWIDTH or '
            '--to pt2 may do'
        ) from error


def write_openvino(onnx: Path, path: Path) -> None:
    """Write an ONNX file as OpenVINO's `path`, with the suffix .xml, and weights in float32 beside it."""
    import openvino

    openvino.save_model(openvino.convert_model(onnx), path, compress_to_fp16=False)


def runner_of(path: Path) -> Callable[[Tensor], Sequence[Tensor]]:
    """A function that runs an exported file: from images, (B, 3, H, W), to its outputs."""
    if path.suffix in BACKENDS:
        backend = open_backend(BACKENDS[path.suffix], path, torch.get_num_threads(), device='cpu')
        return lambda image: [torch.from_numpy(output) for output in backend.run(image.numpy()).values()]
    if path.name == FILES['aoti']:
        return torch._inductor.aoti_load_package(str(path))
    return torch.export.load(path).module()


@torch.no_grad()
def check_outputs(
    network: nn.Module,
    exported: Callable[[Tensor], Sequence[Tensor]],
    sizes: Sequence[tuple[int, int, int]],
    channels: int = 3,
) -> float:
    """Compare an exported file with the model, on noise.

    Args:
        network: The network that was exported.
        exported: Runs the file (see `runner_of`).
        sizes: Batch, height and width of the images.
        channels: Their channels.

    Returns:
        The largest difference, relative to the largest output of the model.

    Raises:
        InputError: It is larger than `TOLERANCE`, and than `TIMES_OWN_ROUNDING` times the model's own rounding.
    """
    largest = 0.0
    for batch, height, width in sizes:
        image = torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(0))
        expected = network(image)
        difference = _difference(expected, exported(image))
        largest = max(largest, difference)
        if difference <= TOLERANCE:
            continue
        own_rounding = _difference(expected, copy.deepcopy(network).double()(image.double()))
        if not difference <= TIMES_OWN_ROUNDING * own_rounding:
            raise InputError(
                f'the exported file differs from the model by {difference:.1e} of its largest output, at '
                f'{batch} x {height} x {width}: this model cannot be exported so'
            )
    return largest


def _difference(expected: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """The largest difference, relative to the largest value of each expected tensor; NaN if any is."""
    pairs = zip(expected, outputs, strict=True)
    return float(torch.stack([(one - other).abs().max() / one.abs().max() for one, other in pairs]).max())


def _input(size: tuple[int, int] | None, is_portable: bool, channels: int) -> dict:
    """The entry of the input in `pipeline.json`."""
    entry = dict(name='input' if is_portable else 'image', dtype='float32')
    if size is not None:
        return dict(entry, shape=[1, channels, *size], minimum=min(size), multiple=1)
    multiple = DIVISOR if is_portable else 1
    return dict(entry, shape=['batch', channels, 'height', 'width'], minimum=SIDES[0], multiple=multiple)
