"""Weights and activations in int8, of any ONNX file that has a `pipeline.json` beside it, whatever exported it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from ..errors import InputError
from ..runtime import Model
from ..runtime.files import atomic_path
from ..runtime.paths import images_below
from .verification import evenly_spaced, quiet

# Operators that compute in int8. Softmax, normalisation and what else there is stay as they are.
QUANTIZED = ('Conv', 'Gemm', 'MatMul')
# The ranges are calibrated on so many images; more would hardly change them, and take their time.
NUM_IMAGES = 32
# Operators whose outputs depend on the shape of what goes in, not on its values.
SHAPE_OPERATORS = ('Shape', 'Size')


def to_int8(path: Path, folder: str | Path, num_images: int = NUM_IMAGES) -> tuple[Path, int]:
    """Quantise convolutions and products with weights to int8, by onnxruntime's static quantisation.

    The ranges of the activations come from images, and each channel of a weight has a range of its own. Inputs and
    outputs stay float32, and so do: the products of attention, which have no weights or, as TransNeXt's learnable
    tokens, those of each head; its softmax, normalisation, and all that is computed from sizes alone, such as
    TransNeXt's log-CPB and in files for any size the averages of pooling.

    Args:
        path: The ONNX file, which is best one of float32.
        folder: Folder with images such as the model will see, also in subfolders.
        num_images: Number of them, at most, taken at equal distances.

    Returns:
        The file that was written, model_int8.onnx for model.onnx, and the number of images.

    Raises:
        InputError: The folder does not exist or has no images, or one cannot be read.
    """
    images = evenly_spaced(find_images(folder), num_images)
    out = path.with_name(f'{path.stem}_int8{path.suffix}')
    with atomic_path(out) as partial:
        quantize(path, partial, CalibrationImages(path, images))
    return out, len(images)


def quantize(path: Path, out: Path, inputs: object) -> None:
    """What `to_int8` does, with inputs whose `get_next()` gives arrays by their names, and None at the end."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    model = onnx.load(path)
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f'node_{index}'  # nodes are excluded by their names
    with quiet():  # it recommends a preprocessing that fails where sizes are not fixed
        quantize_static(
            model,
            out,
            inputs,
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=list(QUANTIZED),
            nodes_to_exclude=[node.name for node in (*size_nodes(model.graph), *attention_products(model.graph))],
            calibrate_method=CalibrationMethod.MinMax,
        )


def size_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a graph that compute from constants and sizes alone: images of one size do not change them."""
    from_values = {source.name for source in graph.input}
    nodes = []
    for node in graph.node:  # in the order in which they are computed
        if node.op_type not in SHAPE_OPERATORS and from_values & _inputs_of(node):
            from_values.update(node.output)
        else:
            nodes.append(node)
    return nodes


def attention_products(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The products that are no layer with a weight matrix: of two activations, or with a matrix for each head."""
    matrices = {weight.name for weight in graph.initializer if len(weight.dims) == 2}
    return [node for node in graph.node if node.op_type in ('MatMul', 'Gemm') and node.input[1] not in matrices]


def _inputs_of(node: onnx.NodeProto) -> set[str]:
    """What a node takes, also inside of its branches and loops."""
    names = set(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= _inputs_of(inner)
    return names


class CalibrationImages:
    """The model's inputs for images, one by one, as onnxruntime's `CalibrationDataReader` gives them.

    Segmentors that slide a window see the middle window of each image.
    """

    def __init__(self, path: Path, images: Sequence[Path]) -> None:
        self._model = Model(path)
        self._images = iter(images)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next input by its name; None after the last."""
        image = next(self._images, None)
        return None if image is None else {self._model.input_name: self._model.inputs_of(self._model.read(image))}


def find_images(folder: str | Path) -> list[Path]:
    """The images in a folder and its subfolders, by name.

    Raises:
        InputError: The folder does not exist, or has none.
    """
    if not Path(folder).is_dir():
        raise InputError(f'no folder of images to calibrate on at {folder}')
    return images_below(Path(folder))
