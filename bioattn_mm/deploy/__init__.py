"""Export through mmdeploy: importing this package registers what mmdeploy replaces while it traces a model.

A deploy config that names it, `codebase_config=dict(module=['bioattn_mm.deploy'], ...)` as those of configs/deploy,
makes mmdeploy's own functions and tools work on the configs of this repository. All that is exported are standard
operators of ONNX.
"""

from . import (
    adaptive_pooling,
    aggregated_attention,
    gaussian_bias,
    log_cpb,
    onnx_exporter,
    padding,
    peripheral_attention,
    position_embedding,
    scaled_dot_product_attention,
    sparse_reconstruction,
    tasks,
    two_stage_heads,
    window_attention,
)

__all__ = [
    'adaptive_pooling',
    'aggregated_attention',
    'gaussian_bias',
    'log_cpb',
    'onnx_exporter',
    'padding',
    'peripheral_attention',
    'position_embedding',
    'scaled_dot_product_attention',
    'sparse_reconstruction',
    'tasks',
    'two_stage_heads',
    'window_attention',
]
