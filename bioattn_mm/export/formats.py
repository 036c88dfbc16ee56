"""The files of an export: a model in one of the formats, and `pipeline.json`."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from torch import Tensor, nn

from ..errors import InputError
from ..runtime.backends import open_backend
from .networks import Features, check_any_size, network_of
from .pipeline import description_of, write_pipeline
from .program import DIVISOR, SIDES, trace, trace_portable

FILES = dict(pt2='model.pt2', onnx='end2end.onnx')
FOR_ONNX = ('onnx', 'onnxscript', 'onnxslim', 'onnxruntime')
PACKAGES = dict(pt2=(), onnx=FOR_ONNX)
# Batch, height and width at which a file for any size is compared with the model: a single square image, and several
# that are not square, with the shortest side that a file takes; in ONNX in multiples of 32.
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
        kind: 'pt2' or 'onnx'.
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
    channels = config.model.get('backbone', {}).get('in_channels', 3)
    if size is None:
        check_any_size(model)
    image = torch.zeros(1, channels, *(size or CHECKED[0][1:]))
    network = Features(model.backbone, image) if backbone else network_of(model, config)
    # A config that cannot be described is refused here, before minutes of tracing.
    description = description_of(config, network.task, type(model).__name__, classes, palette)
    path = folder / FILES[kind]
    if kind == 'onnx':
        from .onnx_file import write_onnx

        write_onnx(trace_portable(network, size, channels), network.names, path, any_size=size is None)
        name, checked, multiple = 'input', CHECKED_PORTABLE, DIVISOR
    else:
        torch.export.save(trace(network, size, channels), path)
        name, checked, multiple = 'image', CHECKED, 1
    check_outputs(network, runner_of(path), [(1, *size)] if size else checked, channels)
    if size is None:
        takes = dict(shape=['batch', channels, 'height', 'width'], minimum=SIDES[0], multiple=multiple)
    else:
        takes = dict(shape=[1, channels, *size], minimum=min(size), multiple=1)
    document = dict(
        model=path.name,
        inputs=[dict(name=name, dtype='float32', **takes)],
        outputs=[dict(name=name, dtype='float32') for name in network.names],
        **description,
    )
    return [path, write_pipeline(folder, document)]


def runner_of(path: Path) -> Callable[[Tensor], Sequence[Tensor]]:
    """A function that runs an exported file: from images, (B, 3, H, W), to its outputs."""
    if path.suffix == '.onnx':
        backend = open_backend('onnxruntime', path, torch.get_num_threads(), device='cpu')
        return lambda image: [torch.from_numpy(output) for output in backend.run(image.numpy()).values()]
    return torch.export.load(path).module()


@torch.no_grad()
def check_outputs(
    network: nn.Module,
    exported: Callable[[Tensor], Sequence[Tensor]],
    sizes: Sequence[tuple[int, int, int]],
    channels: int = 3,
) -> float:
    """Compare an exported file with the model, on noise of sizes (batch, height, width).

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
