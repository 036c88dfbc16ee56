"""Export through mmdeploy: importing this package registers its rewriters, which mmdeploy applies while it traces.

A deploy config imports it with `codebase_config=dict(module=['bioattn_mm.export.mmdeploy'], ...)`, as those of
configs/deploy do; mmdeploy's own functions and tools then work with the configs of this repository. Rewriters belong
to attention layers and to functions of PyTorch and OpenMMLab, not to backbones. Exported graphs have only standard
ONNX operators.
"""

from . import pytorch_functions, systems, tasks, upstream_layers

__all__ = ['pytorch_functions', 'systems', 'tasks', 'upstream_layers']
