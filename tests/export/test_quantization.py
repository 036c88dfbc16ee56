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

LENGTH = 32
SLIDE = dict(mode='slide', crop_size=[LENGTH, LENGTH], stride=[24, 24], align_corners=False)
# A small transformer whose tokens are the rows: attention with a bias that is computed from the size, and classes.
NODES = [
    ('MatMul', 'input query_weight', 'query', {}),
    ('MatMul', 'input key_weight', 'key', {}),
    ('Transpose', 'key', 'keys', dict(perm=[0, 1, 3, 2])),
    ('MatMul', 'query keys', 'pairs', {}),
    # Log-CPB: coordinates from the number of tokens, through a small network.
    ('Shape', 'input', 'sizes', {}),
    ('Gather', 'sizes two', 'number', {}),
    ('Range', 'zero number one', 'positions', {}),
    ('Cast', 'positions', 'coordinates', dict(to=onnx.TensorProto.FLOAT)),
    ('Unsqueeze', 'coordinates axes', 'column', {}),
    ('MatMul', 'column cpb_weight', 'hidden', {}),
    ('Sin', 'hidden', 'bounded', {}),
    ('MatMul', 'bounded cpb_last', 'bias', {}),
    ('Add', 'pairs bias', 'with_bias', {}),
    ('Softmax', 'with_bias', 'attention', dict(axis=-1)),
    ('MatMul', 'attention input', 'averaged', {}),
    ('MatMul', 'averaged tokens', 'mixed', {}),
    ('Add', 'mixed input', 'output', {}),
    ('Conv', 'output classes', 'logits', {}),
]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """The file of `NODES`, and images beside it."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    constants = dict(
        query_weight=weight(LENGTH, LENGTH),
        key_weight=weight(LENGTH, LENGTH),
        tokens=weight(1, LENGTH, LENGTH),  # a stack of weights, as that of each head
        cpb_weight=weight(1, 1500),
        cpb_last=weight(1500, 1),
        classes=weight(4, 3, 1, 1) * 4,
    )
    constants |= {name: np.array(value) for name, value in dict(zero=0, one=1, two=2, axes=[1]).items()}
    nodes = [helper.make_node(op, names.split(), [out], name=out, **options) for op, names, out, options in NODES]
    shape = (1, 3, LENGTH, LENGTH)
    path = write(tmp_path / 'exported', 'segmentation', nodes, constants, shape, ['logits'], SLIDE)
    (tmp_path / 'images/inner').mkdir(parents=True)
    for index in range(6):
        cv2.imwrite(str(tmp_path / f'images/inner/{index}.png'), image_of(48, 61, index))
    return path


def test_only_what_depends_on_the_image_depends_on_it(exported: Path) -> None:
    names = {node.name for node in size_nodes(onnx.load(exported).graph)}
    assert names == {'sizes', 'number', 'positions', 'coordinates', 'column', 'hidden', 'bounded', 'bias'}


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
    assert not list(exported.parent.glob('.*')), 'temporary files'
    image = image_of(48, 61, seed=9)
    (expected,) = Model(exported)(image, return_logits=True)
    assert len(np.unique(expected.labels)) > 1
    for backend in BACKENDS:
        (found,) = Model(path, backend)(image, return_logits=True)
        assert 0 < np.abs(found.logits - expected.logits).max() < 0.3 * np.abs(expected.logits).max()
        assert (found.labels == expected.labels).mean() > 0.9


def test_images_to_calibrate_on(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match='no folder of images to calibrate on at '):
        to_int8(exported, tmp_path / 'nowhere')
    with pytest.raises(InputError, match='no images in .*: expected files that end in .jpg'):
        to_int8(exported, exported.parent)
