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

from ..errors import InputError, first_line
from .program import DIVISOR

# onnxruntime fuses what newer ones have as one operator, such as Gelu; 17 has LayerNormalization, TensorRT reads 18.
OPSET = 18
INPUT = 'input'
OF_WEIGHTS = ('Split', 'Slice', 'Unsqueeze', 'Reshape', 'Transpose')
LARGEST_CONSTANT = 2**22  # the largest constant that is computed for the file, in bytes


def write_onnx(program: ExportedProgram, names: Sequence[str], path: Path, any_size: bool) -> None:
    """Write the result of `trace_portable`, for any size or for one, as an ONNX file whose outputs have `names`.

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
            reason = first_line(error.__cause__ or error)[:200]
            raise InputError(
                f'torch.onnx cannot write this model, --via mmdeploy or --to pt2 may: {reason}'
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
    each head, (heads, B * H * W, d), by a matrix of this head, (heads, d, k * k).

    A third makes one `Split` of two `Slice`: it tries every pair, and takes most of the time with UperNet.
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
    """Whether to compute a node for the file because it rearranges weights, which quantisation looks for as such."""
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
    tensor = image.type.tensor_type
    num_channels = tensor.shape.dim[1].dim_value
    shape = ['batch', num_channels, 'height', 'width']
    image.CopyFrom(helper.make_tensor_value_info(image.name, tensor.elem_type, shape))

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
