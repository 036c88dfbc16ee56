"""Smaller ONNX files: which weights and nodes change, which do not, and what the models then predict."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from ..needs import module_needs

pytestmark = module_needs('onnx', 'onnxruntime', 'openvino')
import onnx  # noqa: E402
from onnx import helper  # noqa: E402

from bioattn_mm.errors import InputError  # noqa: E402
from bioattn_mm.export.quantization import size_nodes, to_int8  # noqa: E402
from bioattn_mm.runtime import Model  # noqa: E402
from bioattn_mm.runtime.backends import BACKENDS  # noqa: E402

from ..runtime.comparison import image_of  # noqa: E402
from ..runtime.small_models import write  # noqa: E402

DIMS, HEADS = 32, 2
SLIDE = dict(mode='slide', crop_size=[32, 32], stride=[24, 24], align_corners=False)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A small vision transformer: patches, one attention with a bias that is computed from the size, and classes."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    constants = dict(
        patch=weight(DIMS, 3, 4, 4),
        query_weight=weight(DIMS, DIMS),
        key_weight=weight(DIMS, DIMS),
        tokens=weight(1, DIMS, DIMS),  # a stack of weights, as that of each head
        cpb_weight=weight(1, 1500),
        cpb_last=weight(1500, 1),
        classes=weight(4, DIMS, 1, 1) * 4,
        flat=np.array([0, 0, -1]),
        rows=np.array([2]),
        axes=np.array([0]),
        zero=np.array(0),
        one=np.array(1),
        shape=np.array([1, DIMS, 8, 8]),
    )
    node = helper.make_node
    nodes = [
        node('Conv', ['input', 'patch'], ['patches'], strides=[4, 4], kernel_shape=[4, 4]),
        node('Reshape', ['patches', 'flat3'], ['flattened']),
        node('Transpose', ['flattened'], ['x'], perm=[0, 2, 1]),
        node('MatMul', ['x', 'query_weight'], ['query'], name='query'),
        node('MatMul', ['x', 'key_weight'], ['key'], name='key'),
        node('Transpose', ['key'], ['keys'], perm=[0, 2, 1]),
        node('MatMul', ['query', 'keys'], ['logits_of_pairs'], name='pairs'),
        # Log-CPB: coordinates from the number of tokens, through a small network.
        node('Shape', ['x'], ['sizes']),
        node('Gather', ['sizes', 'one'], ['number']),
        node('Range', ['zero', 'number', 'one'], ['positions']),
        node('Cast', ['positions'], ['coordinates'], to=onnx.TensorProto.FLOAT),
        node('Unsqueeze', ['coordinates', 'rows_axis'], ['column']),
        node('MatMul', ['column', 'cpb_weight'], ['hidden'], name='cpb_first'),
        node('Sin', ['hidden'], ['bounded']),
        node('MatMul', ['bounded', 'cpb_last'], ['bias'], name='cpb_second'),
        node('Add', ['logits_of_pairs', 'bias'], ['logits_with_bias']),
        node('Softmax', ['logits_with_bias'], ['attention'], axis=-1),
        node('MatMul', ['attention', 'x'], ['averaged'], name='average'),
        node('MatMul', ['averaged', 'tokens'], ['mixed'], name='tokens'),
        node('Add', ['mixed', 'x'], ['output']),
        node('Transpose', ['output'], ['channels'], perm=[0, 2, 1]),
        node('Reshape', ['channels', 'shape'], ['map']),
        node('Conv', ['map', 'classes'], ['logits'], kernel_shape=[1, 1]),
    ]
    constants.update(flat3=np.array([1, DIMS, -1]), rows_axis=np.array([1]))
    for name in ('flat', 'rows', 'axes'):
        del constants[name]
    path = write(tmp_path / 'exported', 'segmentation', nodes, constants, (1, 3, 32, 32), ['logits'], SLIDE)
    (tmp_path / 'images/inner').mkdir(parents=True)
    for index in range(6):
        cv2.imwrite(str(tmp_path / f'images/inner/{index}.png'), image_of(48, 61, index))
    return path


def test_only_what_depends_on_the_image_depends_on_it(exported: Path) -> None:
    names = {node.name for node in size_nodes(onnx.load(exported).graph) if node.name}
    assert names == {'cpb_first', 'cpb_second'}


def test_int8_leaves_attention_as_it_is(exported: Path, tmp_path: Path) -> None:
    path, number = to_int8(exported, tmp_path / 'images', num_images=4)
    assert path.name == 'model_int8.onnx' and number == 4
    graph = onnx.load(path).graph
    made_by = {name: node.op_type for node in graph.node for name in node.output}
    products = [node for node in graph.node if node.op_type == 'MatMul']
    # onnxruntime computes in int8 what comes from two of these.
    in_int8 = {node.name for node in products if {made_by.get(name) for name in node.input} == {'DequantizeLinear'}}
    assert in_int8 == {'query', 'key'}
    softmax = next(node for node in graph.node if node.op_type == 'Softmax')
    assert made_by[softmax.input[0]] != 'DequantizeLinear'
    compare(exported, path, difference=0.3, same=0.9)
    assert not list(exported.parent.glob('.*')), 'temporary files'


def compare(exported: Path, smaller: Path, difference: float, same: float) -> None:
    """The predictions of the smaller file are close to those of the exported one, and not the same."""
    image = image_of(48, 61, seed=9)
    (expected,) = Model(exported)(image, return_logits=True)
    assert len(np.unique(expected.labels)) > 1
    for backend in BACKENDS:
        (found,) = Model(smaller, backend)(image, return_logits=True)
        assert 0 < np.abs(found.logits - expected.logits).max() < difference * np.abs(expected.logits).max()
        assert (found.labels == expected.labels).mean() > same


def test_images_to_calibrate_on(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match='no folder of images to calibrate on at '):
        to_int8(exported, tmp_path / 'nowhere')
    with pytest.raises(InputError, match='no images in .*: expected files that end in .jpg'):
        to_int8(exported, exported.parent)
