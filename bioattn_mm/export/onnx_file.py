"""From a traced program to an ONNX file: standard operators alone, for onnxruntime, OpenVINO and TensorRT."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import torch
from torch.export import ExportedProgram

from ..errors import InputError
from .program import DIVISOR

# onnxruntime fuses what newer ones have as one operator, such as Gelu; 17 has LayerNormalization, TensorRT reads 18.
OPSET = 18
INPUT = 'input'
OF_WEIGHTS = ('Split', 'Slice', 'Unsqueeze', 'Reshape', 'Transpose')
LARGEST_CONSTANT = 2**22  # of those that are computed for the file, in bytes


def write_onnx(program: ExportedProgram, names: Sequence[str], path: Path, any_size: bool) -> None:
    """Write an ONNX file.

    Args:
        program: Result of `trace_portable`.
        names: Of the outputs.
        path: The file.
        any_size: Whether the program takes any size.

    Raises:
        InputError: The program has operators that ONNX has not, such as those of complex numbers.
    """
    import onnxslim
    from onnxscript.optimizer import fold_constants

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), rules_of_onnxscript():
        warnings.simplefilter('ignore')
        logging.getLogger('torch.onnx').setLevel(logging.ERROR)
        try:
            written = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=list(names),
                verbose=False,
            )
        except Exception as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise InputError(
                f'torch.onnx cannot write this model, --via mmdeploy or --to pt2 may: {reason[:200]}'
            ) from error
        fold_constants(written.model, should_fold=is_part_of_weight)
        model = written.model_proto
        if any_size:
            merge_cells(model)
        # Biases of all pairs of tokens stay formulas of their tables: the runtime computes them once, when it loads.
        model = onnxslim.slim(model, size_threshold=LARGEST_CONSTANT)
    path.write_bytes(model.SerializeToString())


@contextlib.contextmanager
def rules_of_onnxscript() -> Iterator[None]:
    """Context in which torch.onnx optimizes its graph by those rules of onnxscript that are right and quick.

    Two rules drop the reshapes around a product of matrices wherever the product without them has the same shape. Its
    values are others where axes of different meaning have one length: aggregated attention multiplies the queries of
    each head, (heads, B * H * W, d), by a matrix of this head, (heads, d, k * k). Without reshapes that is
    (heads, B, H, W, d) by (heads, d, k * k), and of as many rows as heads each has another matrix.

    A third makes one `Split` of two `Slice`. It tries every pair of slices, and each time reads the whole graph: most
    of the time of optimizing UperNet with TransNeXt-Micro, which has 877 of them among 21,821 nodes.
    """
    from onnxscript import rewriter
    from onnxscript.rewriter.rules import common

    left_out = (
        common.one_reshape_matmul_reshape_rule,
        common.two_reshapes_matmul_reshape_rule,
        common.slice_split_rule,
    )
    rules = tuple(rule for rule in rewriter._DEFAULT_REWRITE_RULES if rule not in left_out)
    with mock.patch.object(rewriter, '_DEFAULT_REWRITE_RULES', rules):
        yield


def is_part_of_weight(node: object) -> bool | None:
    """Whether a node takes weights apart or gives them other axes: quantisation and fusions look for weights as such.

    Returns:
        None if onnxscript shall decide, by the size of the constants.
    """
    constants = all(value is None or value.const_value is not None for value in node.inputs)
    return True if node.op_type in OF_WEIGHTS and constants else None


def merge_cells(model: object) -> None:
    """Give a file with the input (B, channels, h, 32, w, 32) the input (B, channels, 32 h, 32 w)."""
    from onnx import TensorProto, helper

    graph = model.graph
    image = graph.input[0]
    inner = f'{image.name}_in_cells'
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == image.name:
                node.input[index] = inner
    axes = image.type.tensor_type.shape
    num_channels = axes.dim[1].dim_value
    del axes.dim[:]
    for length in ('batch', num_channels, 'height', 'width'):
        axis = axes.dim.add()
        if isinstance(length, int):
            axis.dim_value = length
        else:
            axis.dim_param = length

    def constant(name: str, values: Sequence[int]) -> str:
        graph.initializer.append(helper.make_tensor(f'cells_{name}', TensorProto.INT64, [len(values)], values))
        return f'cells_{name}'

    divisor, channels = constant('size', [DIVISOR]), constant('channels', [num_channels])
    nodes = [helper.make_node('Shape', [image.name], ['cells_shape'])]
    for axis, name in ((0, 'batch'), (2, 'height'), (3, 'width')):
        nodes.append(helper.make_node('Gather', ['cells_shape', constant(f'axis_{name}', [axis])], [f'cells_{name}']))
    for name in ('height', 'width'):
        nodes.append(helper.make_node('Div', [f'cells_{name}', divisor], [f'cells_of_{name}']))
    lengths = ['cells_batch', channels, 'cells_of_height', divisor, 'cells_of_width', divisor]
    nodes.append(helper.make_node('Concat', lengths, ['cells_lengths'], axis=0))
    nodes.append(helper.make_node('Reshape', [image.name, 'cells_lengths'], [inner]))
    for node in reversed(nodes):
        graph.node.insert(0, node)
