"""ONNX files of small networks, written without PyTorch, with the pipeline.json that makes models of them."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = ('wall', 'sky', 'sea', 'sand')
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


def weights(num_classes: int = len(CLASSES), channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Weight (classes, channels, 3, 3) and bias of the convolution of `segmentor`."""
    weight = np.random.default_rng(0).normal(size=(num_classes, channels, 3, 3))
    return weight.astype(np.float32), np.linspace(-1, 1, num_classes, dtype=np.float32)


def segmentor(
    folder: Path, shape: tuple = ('batch', 3, 'height', 'width'), classes: int = len(CLASSES), **postprocessing
) -> Path:
    """A convolution with a stride of 2, whose channels are the classes; axes of any length have names in `shape`."""
    weight, bias = weights(classes, shape[1])
    attributes = dict(strides=[2, 2], pads=[1, 1, 1, 1])
    node = helper.make_node('Conv', ['input', 'weight', 'bias'], ['logits'], **attributes)
    return write(folder, 'segmentation', [node], dict(weight=weight, bias=bias), shape, ['logits'], postprocessing)


def write(
    folder: Path, task: str, nodes: list, constants: dict, shape: tuple, outputs: list[str], postprocessing: dict
) -> Path:
    """Write a model and its pipeline.json: images are resized to a short side of 48 pixels."""
    graph = helper.make_graph(
        nodes,
        task,
        [helper.make_tensor_value_info('input', TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / 'model.onnx')
    document = dict(
        format='bioattn_mm/1',
        task=task,
        preprocessing=[
            dict(type='resize', scale=[96, 48], keep_ratio=True, interpolation='bilinear'),
            dict(type='normalize', mean=MEAN, std=STD, channels='RGB'),
        ],
        postprocessing=postprocessing,
        classes=CLASSES,
        palette=[[10, 20, 30], [40, 90, 200], [20, 120, 90], [250, 230, 20]],
    )
    (folder / 'pipeline.json').write_text(json.dumps(document))
    return folder / 'model.onnx'


def change_pipeline(folder: Path, **entries: object) -> None:
    """Replace entries of a folder's pipeline.json."""
    path = folder / 'pipeline.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


SLIDE = dict(mode='slide', crop_size=[32, 40], stride=[21, 27], align_corners=False)
WHOLE = dict(mode='whole', align_corners=False)
