"""Child registries of mmengine's root registries, scope `bioattn_mm`.

mmengine imports this module when a config of any library names a type such as `bioattn_mm.TransNeXt`; no
`custom_imports` are needed. A registry imports its `locations` at the first look-up.
"""

from importlib import import_module

from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import DATA_SAMPLERS as MMENGINE_DATA_SAMPLERS
from mmengine.registry import DATASETS as MMENGINE_DATASETS
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import LOOPS as MMENGINE_LOOPS
from mmengine.registry import METRICS as MMENGINE_METRICS
from mmengine.registry import MODEL_WRAPPERS as MMENGINE_MODEL_WRAPPERS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.registry import OPTIM_WRAPPERS as MMENGINE_OPTIM_WRAPPERS
from mmengine.registry import STRATEGIES as MMENGINE_STRATEGIES
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.registry import VISBACKENDS as MMENGINE_VISBACKENDS
from mmengine.registry import VISUALIZERS as MMENGINE_VISUALIZERS
from mmengine.registry import Registry
from mmengine.utils import is_installed

# mmengine looks for the files of `_base_ = 'mmseg::...'` in the package of this name.
if not is_installed(MODULE2PACKAGE['mmseg']):
    MODULE2PACKAGE['mmseg'] = 'onedl-mmsegmentation'


class LateRegistry(Registry):
    """mmengine's registry; some names are in modules that import another library, and wait until they are asked for.

    Attributes:
        late: The modules of this package by these names.
    """

    late: dict[str, str]

    def get(self, key: str) -> type | None:
        module = self.late.get(key.split('.')[-1])
        if module is not None:
            import_module(f'bioattn_mm.{module}')
        return super().get(key)


def child(parent: Registry, *locations: str, late: dict[str, str] | None = None) -> Registry:
    """The registry of this package below one of mmengine's.

    Args:
        parent: mmengine's registry.
        locations: Modules of this package that are imported at the first look-up.
        late: See `LateRegistry`.
    """
    registry = LateRegistry(
        parent.name, parent=parent, scope='bioattn_mm', locations=[f'bioattn_mm.{name}' for name in locations]
    )
    registry.late = late or {}
    return registry


MODELS = child(
    MMENGINE_MODELS,
    'models',
    late=dict(CompatibleDINO='models.detectors', TimmBackbone='models.backbones.timm_backbone'),
)
HOOKS = child(
    MMENGINE_HOOKS,
    'engine.hooks',
    'engine.compilation',
    'engine.cuda_graphs',
    'engine.checkpoints',
    'engine.randomness',
    'engine.ema',
    'engine.visualization',
    'engine.amp',
    'engine.step_log',
    'engine.trackers',
    late=dict(AttentionStatisticsHook='engine.attention', GatherForValidationHook='engine.strategies'),
)
LOOPS = child(MMENGINE_LOOPS, 'engine.randomness')
MODEL_WRAPPERS = child(MMENGINE_MODEL_WRAPPERS, 'engine.sync_batch_norm')
STRATEGIES = child(MMENGINE_STRATEGIES, 'engine.strategies')
DATASETS = child(
    MMENGINE_DATASETS, 'datasets.image_mask', 'datasets.fractions', 'datasets.imagenet', 'datasets.fine_tuning'
)
DATA_SAMPLERS = child(MMENGINE_DATA_SAMPLERS, 'datasets.shard_samplers')
METRICS = child(
    MMENGINE_METRICS,
    late=dict(
        SubsetAccuracy='engine.metrics',
        CorruptionError='engine.metrics',
        CocoPanopticMetric='engine.panoptic',
        ResultFiles='engine.result_files',
    ),
)
TRANSFORMS = child(
    MMENGINE_TRANSFORMS,
    'datasets.transforms',
    'datasets.corruption',
    'datasets.quick',
    late=dict(CountedRandomCrop='datasets.quick_seg', TablePhotoMetricDistortion='datasets.quick_seg'),
)
VISUALIZERS = child(
    MMENGINE_VISUALIZERS,
    late=dict(
        DetVisualizer='engine.detection', PanopticVisualizer='engine.panoptic', SegVisualizer='engine.segmentation'
    ),
)
VISBACKENDS = child(MMENGINE_VISBACKENDS, 'engine.trackers')
OPTIM_WRAPPERS = child(MMENGINE_OPTIM_WRAPPERS, 'engine.amp')
OPTIM_WRAPPER_CONSTRUCTORS = child(MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS, 'engine.optim')
