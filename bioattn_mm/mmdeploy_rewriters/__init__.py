"""Export through mmdeploy: importing this package registers its rewriters, which mmdeploy applies while it traces.

A deploy config imports it with `codebase_config=dict(module=['bioattn_mm.mmdeploy_rewriters'], ...)`, as those of
configs/deploy do; mmdeploy's own functions and tools then work with the configs of this repository. Rewriters belong
to attention layers and to functions of PyTorch and OpenMMLab, not to backbones. Exported graphs have only standard
ONNX operators.
"""

from . import (
    adaptive_pooling,
    fixed_size,
    onnx_exporter,
    padding,
    peripheral_attention,
    scaled_dot_product_attention,
    sparse_reconstruction,
    tasks,
    two_stage_heads,
    window_attention,
)

__all__ = [
    'adaptive_pooling',
    'fixed_size',
    'onnx_exporter',
    'padding',
    'peripheral_attention',
    'scaled_dot_product_attention',
    'sparse_reconstruction',
    'tasks',
    'two_stage_heads',
    'window_attention',
]
