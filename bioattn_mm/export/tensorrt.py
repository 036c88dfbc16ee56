"""What TensorRT reads of an ONNX file, by its published list; nothing here has run in TensorRT.

Sources, of github.com/onnx/onnx-tensorrt:

- docs/operators.md at commit 6d0ab7be324d02c7feb3a306b6fdbeae84f71ddc: the list of TensorRT 8.5, with the types
  below. TensorRT 8 casts INT64 to INT32, later ones have it; all cast DOUBLE to FLOAT.
- docs/Changelog.md at commit 0137504e2b25fe5253bd85d26b073378fb67805b: 8.6 EA (2023-3-13) added LayerNormalization.
- docs/operators.md of TensorRT 10.15, for operators of opset 9 to 24: of LayerNormalization only the first output may
  be used, and the axes of reductions, which are inputs from opset 18 on, have to be constants.

Exported files have opset 18. The lists of 8.5 and 8.6 go up to 17, that of 9.2 up to 19: they are for 9.2 and later.
"""

from pathlib import Path

FLOATS = frozenset({'FLOAT', 'FLOAT16'})
NUMBERS = FLOATS | {'INT32'}
ANY = NUMBERS | {'INT8', 'BOOL'}
# Types that count as others.
CAST = dict(INT64='INT32', DOUBLE='FLOAT')
# The types of the first input, of the operators that exported files may have.
TYPES = {
    **dict.fromkeys(
        'BatchNormalization Ceil Cos CumSum Einsum Erf Exp Floor GridSample InstanceNormalization Log LogSoftmax '
        'MatMul NonMaxSuppression NonZero Pow Reciprocal ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd '
        'ReduceSum ReduceSumSquare Resize RoiAlign Sin Softmax Sqrt TopK'.split(),
        FLOATS,
    ),
    **dict.fromkeys(
        'Clip Conv ConvTranspose Gemm GlobalAveragePool HardSigmoid LeakyRelu MaxPool Relu Sigmoid Softplus '
        'Tanh'.split(),
        FLOATS | {'INT8'},
    ),
    **dict.fromkeys(
        'Abs Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Neg Range Sub Sum'.split(), NUMBERS
    ),
    **dict.fromkeys('AveragePool Pad ScatterElements ScatterND Sign'.split(), NUMBERS | {'INT8'}),
    **dict.fromkeys('Expand EyeLike Flatten OneHot Split Tile Where'.split(), NUMBERS | {'BOOL'}),
    **dict.fromkeys(
        'Cast Concat Constant ConstantOfShape Gather GatherElements GatherND Identity Reshape Shape Size Slice '
        'Squeeze Transpose Trilu Unsqueeze'.split(),
        ANY,
    ),
    **dict.fromkeys(('And', 'Not', 'Or'), frozenset({'BOOL'})),
    'LayerNormalization': FLOATS,
}
# Inputs, by their places, that have to be constants.
CONSTANT_INPUTS = {
    **dict.fromkeys(
        'CumSum ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Squeeze '
        'Unsqueeze'.split(),
        (1,),
    ),
    'Slice': (3,),
}


def refused_by_tensorrt(path: Path) -> list[str]:
    """What in an ONNX file TensorRT does not read: one line for each operator and reason; none if it reads all."""
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    graph = model.graph
    types = {
        value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)
    }
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {name for node in graph.node if node.op_type == 'Constant' for name in node.output}
    refused = set()
    for node in graph.node:
        name = node.op_type
        if node.domain not in ('', 'ai.onnx') or name not in TYPES:
            refused.add(f'{name}: not in the list')
            continue
        # The type of what Where and Gather give is that of the values.
        value = node.input[1] if name == 'Where' else node.input[0] if node.input else None
        if value in types:
            found = onnx.TensorProto.DataType.Name(types[value])
            # Cast and Where take conditions; indices of Gather are not looked at.
            if CAST.get(found, found) not in TYPES[name]:
                refused.add(f'{name}: of {found}')
        if name == 'LayerNormalization' and any(node.output[1:]):
            refused.add(f'{name}: more than its first output')
        for place in CONSTANT_INPUTS.get(name, ()):
            if len(node.input) > place and node.input[place] and node.input[place] not in constants:
                refused.add(f'{name}: input {place} is no constant')
    return sorted(refused)
