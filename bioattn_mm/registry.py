"""Child registries of mmengine's root registries, scope `bioattn_mm`.

mmengine imports this module by itself when a config names a type such as `bioattn_mm.TransNeXt`, from whichever
library's scope the config runs in, so no `custom_imports` is needed.
"""

from importlib import import_module

from mmengine.registry import FUNCTIONS as MMENGINE_FUNCTIONS
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import LOOPS as MMENGINE_LOOPS
from mmengine.registry import MODEL_WRAPPERS as MMENGINE_MODEL_WRAPPERS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.registry import STRATEGIES as MMENGINE_STRATEGIES
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.registry import Registry

# Whatever `bioattn_mm.models.detectors` registers.
DETECTORS = ('CompatibleDINO',)


class ModelRegistry(Registry):
    """mmengine's registry, which imports the detectors, and with them mmdet, only where one of them is asked for."""

    def get(self, key: str) -> type | None:
        if key.split('.')[-1] in DETECTORS:
            import_module('bioattn_mm.models.detectors')
        return super().get(key)


MODELS = ModelRegistry('model', parent=MMENGINE_MODELS, scope='bioattn_mm', locations=['bioattn_mm.models'])
HOOKS = Registry(
    'hook',
    parent=MMENGINE_HOOKS,
    scope='bioattn_mm',
    locations=[f'bioattn_mm.engine.{name}' for name in ('hooks', 'checkpoints', 'randomness', 'ema')],
)
LOOPS = Registry('loop', parent=MMENGINE_LOOPS, scope='bioattn_mm', locations=['bioattn_mm.engine.randomness'])
FUNCTIONS = Registry(
    'function',
    parent=MMENGINE_FUNCTIONS,
    scope='bioattn_mm',
    locations=['bioattn_mm.engine.sharding'],
)
MODEL_WRAPPERS = Registry(
    'model wrapper',
    parent=MMENGINE_MODEL_WRAPPERS,
    scope='bioattn_mm',
    locations=['bioattn_mm.engine.sync_batch_norm'],
)
STRATEGIES = Registry(
    'strategy', parent=MMENGINE_STRATEGIES, scope='bioattn_mm', locations=['bioattn_mm.engine.strategies']
)
TRANSFORMS = Registry(
    'transform',
    parent=MMENGINE_TRANSFORMS,
    scope='bioattn_mm',
    locations=[f'bioattn_mm.datasets.{name}' for name in ('transforms', 'corruption')],
)
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    'optimizer wrapper constructor',
    parent=MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS,
    scope='bioattn_mm',
    locations=['bioattn_mm.engine.optim'],
)
