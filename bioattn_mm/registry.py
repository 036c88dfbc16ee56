"""Child registries of mmengine's root registries, scope `bioattn_mm`.

mmengine imports this module when a config of any library names a type such as `bioattn_mm.TransNeXt`; no
`custom_imports` are needed. A registry imports its `locations` at the first look-up.
"""

from importlib import import_module

from mmengine import registry as mmengine_registry
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import Registry
from mmengine.utils import is_installed

# mmengine looks for the files of `_base_ = 'mmseg::...'` in the package of this name.
if not is_installed(MODULE2PACKAGE['mmseg']):
    MODULE2PACKAGE['mmseg'] = 'onedl-mmsegmentation'


class LateRegistry(Registry):
    """mmengine's registry; some names are in modules, `late`, that import another library when they are asked for."""

    late: dict[str, str]

    def get(self, key: str) -> type | None:
        module = self.late.get(key.split('.')[-1])
        if module is not None:
            import_module(f'bioattn_mm.{module}')
        return super().get(key)


def child(name: str, *locations: str, late: dict[str, str] | None = None) -> Registry:
    """The registry of this package below mmengine's; the first look-up imports the modules `locations`."""
    parent = getattr(mmengine_registry, name)
    modules = [f'bioattn_mm.{module}' for module in locations]
    registry = LateRegistry(parent.name, parent=parent, scope='bioattn_mm', locations=modules)
    registry.late = late or {}
    return registry


MODELS = child(
    'MODELS',
    *(f'systems.{name}' for name in ('transnext', 'convit', 'pervit', 'gab', 'vars')),
    'data.preprocessor',
    'systems.common.simple_feature_pyramid',
    late=dict(
        **dict.fromkeys(('UPerHead', 'FCNHead'), 'training.segmentation_heads'),
        CompatibleDINO='mmcv_ops.dino',
        TimmBackbone='systems.common.timm_backbone',
    ),
)
WITH_HOOKS = 'bad_data compilation cuda_graphs checkpoints randomness ema visualization amp trackers'
HOOKS = child(
    'HOOKS',
    *(f'training.{name}' for name in WITH_HOOKS.split()),
    late=dict(AttentionStatisticsHook='analysis.attention_statistics', GatherForValidationHook='training.strategies'),
)
LOOPS = child('LOOPS', 'training.randomness')
MODEL_WRAPPERS = child('MODEL_WRAPPERS', 'training.sync_batch_norm')
STRATEGIES = child('STRATEGIES', 'training.strategies')
DATASETS = child('DATASETS', 'data.image_mask', 'data.classification')
DATA_SAMPLERS = child('DATA_SAMPLERS', 'data.shards')
METRICS = child(
    'METRICS',
    late=dict(
        **dict.fromkeys(('SubsetAccuracy', 'CorruptionError'), 'training.metrics'),
        CocoPanopticMetric='training.detection',
    ),
)
TRANSFORMS = child(
    'TRANSFORMS',
    'data.transforms',
    'data.corruption',
    late=dict(CountedRandomCrop='data.mmseg_transforms', TablePhotoMetricDistortion='data.mmseg_transforms'),
)
VISUALIZERS = child(
    'VISUALIZERS',
    late=dict(
        **dict.fromkeys(('DetVisualizer', 'PanopticVisualizer'), 'training.detection'),
        SegVisualizer='training.segmentation',
    ),
)
VISBACKENDS = child('VISBACKENDS', 'training.trackers')
OPTIM_WRAPPERS = child('OPTIM_WRAPPERS', 'training.amp')
OPTIM_WRAPPER_CONSTRUCTORS = child('OPTIM_WRAPPER_CONSTRUCTORS', 'training.optim')
