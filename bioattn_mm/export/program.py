"""Tracing a network with `torch.export`, for one size or for any."""

import math
import operator
from unittest import mock

import torch
import torch.fx.experimental._config
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..errors import InputError, first_line
from ..ops.portable import cells_of_axis, portable_formulas, size_of_cells

# Sides of an image that a graph for any size takes, in pixels: from two tokens of the coarsest stage on.
SIDES = (64, 4096)
# An ONNX file for any size takes sides that are multiples of this: all stages' strides divide it, so that every size
# in the graph is a multiple of a symbol, and not a quotient rounded up of quotients rounded up.
DIVISOR = 32
MAX_BATCH = 1024
# Neither square nor a single image, and not the pre-training's size, so that nothing is taken to be always so.
EXAMPLE = (160, 224)
EXAMPLE_OF_ANY = (224, 288)
NUM_EXAMPLES = 2


class InCells(nn.Module):
    """A network whose input, (B, channels, h, 32, w, 32), is an image of 32 h x 32 w pixels.

    The symbols of its graph are h and w; `onnx_file.merge_cells` gives the file the input (B, channels, H, W).
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        batch, channels, rows, size, columns, _ = image.shape
        return self.network(image.reshape(batch, channels, rows * size, columns * size))


def trace(network: nn.Module, size: tuple[int, int] | None, channels: int = 3) -> ExportedProgram:
    """Trace a network as it is: operators of this package stay themselves.

    Args:
        network: From (B, channels, H, W) to a tuple of tensors, in eval mode.
        size: (height, width) in pixels that the graph takes, one image at a time; None for any batch and size.
        channels: Channels of the images.
    """
    if size is not None:
        return _export(network, torch.zeros(1, channels, *size), None)
    lengths = {2: Dim('height', min=SIDES[0], max=SIDES[1]), 3: Dim('width', min=SIDES[0], max=SIDES[1])}
    example = torch.zeros(NUM_EXAMPLES, channels, *EXAMPLE_OF_ANY)
    return _export(network, example, {0: Dim('batch', max=MAX_BATCH), **lengths})


def trace_portable(network: nn.Module, size: tuple[int, int] | None, channels: int = 3) -> ExportedProgram:
    """Trace a network in operators that ONNX has; arguments as in `trace`.

    For any size, its input is that of `InCells`.
    """
    with (
        portable_formulas(),
        mock.patch.object(F, 'adaptive_avg_pool2d', adaptive_average),
        mock.patch.object(F, 'gelu', gelu),
    ):
        if size is not None:
            return _export(network, torch.zeros(1, channels, *size), None)
        height, width = EXAMPLE
        example = torch.zeros(NUM_EXAMPLES, channels, height // DIVISOR, DIVISOR, width // DIVISOR, DIVISOR)
        low, high = (side // DIVISOR for side in SIDES)
        lengths = {2: Dim('rows', min=low, max=high), 4: Dim('columns', min=low, max=high)}
        return _export(InCells(network), example, {0: Dim('batch', max=MAX_BATCH), **lengths})


@torch.no_grad()
def _export(network: nn.Module, example: Tensor, dynamic_axes: dict | None) -> ExportedProgram:
    """Export a network in eval mode; its parameters ask for no gradients afterwards."""
    network.requires_grad_(False)  # exported graphs have no use for gradients
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        try:
            program = torch.export.export(
                network,
                (example,),
                dynamic_shapes=None if dynamic_axes is None else (dynamic_axes,),
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
        except InputError:
            raise
        except Exception as error:
            hint = '; for one size it may: --size HEIGHTxWIDTH' if dynamic_axes else ''
            raise InputError(
                f'torch.export cannot follow this model: {type(error).__name__}: {first_line(error)[:300]}{hint}'
            ) from error
    _drop_inequalities(program)
    return program


def _drop_inequalities(program: ExportedProgram) -> None:
    """Remove the assertions that two sizes differ, which would refuse single images.

    PyTorch asks whether a batch has one image, to choose the layout of a result. For the example, of two images, the
    answer is no, and the graph insists on it: `batch != 1`, `batch * tokens != tokens`. Its operators are those for
    any batch all the same: `formats.export` runs every file with one image and with two.
    """
    for node in list(program.graph.nodes):
        if node.op == 'call_function' and node.target is torch.ops.aten._assert_scalar.default:
            if getattr(node.args[0], 'target', None) in (torch.sym_not, operator.ne):
                program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def gelu(x: Tensor, approximate: str = 'none') -> Tensor:
    """`F.gelu` in the order in which onnxruntime and OpenVINO know it, and make one operator of it."""
    if approximate != 'none':
        return torch.ops.aten.gelu(x, approximate=approximate)
    return x * (1 + torch.erf(x / math.sqrt(2))) * 0.5


def adaptive_average(x: Tensor, output_size: int | tuple[int, int]) -> Tensor:
    """`F.adaptive_avg_pool2d`, exactly, at sizes that are symbols, too: a pooling, or two products of matrices."""
    grid = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
    grid = tuple(length if target is None else target for length, target in zip(x.shape[-2:], grid))
    cells = tuple(size_of_cells(length, target) for length, target in zip(x.shape[-2:], grid))
    if None not in cells:
        return F.avg_pool2d(x, cells)
    if all(target == 1 for target in grid):
        return x.mean((-2, -1), keepdim=True)
    rows, columns = (averaging_matrix(length, target, x) for length, target in zip(x.shape[-2:], grid))
    return rows @ x @ columns.T


def averaging_matrix(length: int, target: int, like: Tensor) -> Tensor:
    """Adaptive average pooling of one axis as a matrix, (target, length), of the dtype and device of `like`."""
    start, end = (bound[:, None] for bound in cells_of_axis(length, target, like.device))
    position = torch.arange(length, device=like.device)
    inside = (position >= start) & (position < end)
    return inside.to(like.dtype) / (end - start).to(like.dtype)
