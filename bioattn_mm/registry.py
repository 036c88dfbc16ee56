"""Child registries of mmengine's root registries, scope `bioattn_mm`.

mmengine imports this module by itself when a config names a type such as `bioattn_mm.TransNeXt`, from whichever
library's scope the config runs in, so no `custom_imports` is needed.
"""

from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.registry import Registry

MODELS = Registry('model', parent=MMENGINE_MODELS, scope='bioattn_mm', locations=['bioattn_mm.models'])
HOOKS = Registry('hook', parent=MMENGINE_HOOKS, scope='bioattn_mm', locations=['bioattn_mm.engine.hooks'])
TRANSFORMS = Registry(
    'transform',
    parent=MMENGINE_TRANSFORMS,
    scope='bioattn_mm',
    locations=['bioattn_mm.datasets.transforms', 'bioattn_mm.datasets.corruption'],
)
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    'optimizer wrapper constructor',
    parent=MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS,
    scope='bioattn_mm',
    locations=['bioattn_mm.engine.optim'],
)
