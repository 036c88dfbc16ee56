"""Changes of a config's datasets and of their pipelines, whose steps name transforms of mmcv, mmdet and mmseg."""

import copy
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from mmengine.config import Config, ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from ...data.skipping import name_bad_files_of
from ...runtime.images import ImageKind

LOAD_ANNOTATIONS = ('LoadAnnotations', 'LoadPanopticAnnotations')
# Loads images of any number of channels, with these as arguments.
LOAD_CHANNELS = 'bioattn_mm.LoadChannelsFromFile'


def find_datasets(node: object) -> Iterator[ConfigDict]:
    """The dataset configs with a `data_root` in dataloader configs, also those inside of dataset wrappers."""
    return (found for found in find_dicts(node) if 'data_root' in found)


def build_dataset(settings: dict) -> BaseDataset:
    """Build a dataset as it is in a run, where errors name the file (see `training.bad_data.NameBadFilesHook`)."""
    dataset = DATASETS.build(settings)
    name_bad_files_of(dataset)
    return dataset


def image_kind(config: Config) -> ImageKind | None:
    """Channels and dtype of the images of a config with `LOAD_CHANNELS`; None for those of 8-bit RGB."""
    step = next(
        (step for step in find_dicts(config.get('test_dataloader')) if step.get('type') == LOAD_CHANNELS), None
    )
    return step and ImageKind(step.channels, step.dtype)


def data_preprocessor_of(config: Config) -> dict:
    """The settings of the data preprocessor, which may stand beside the model, and in mmpretrain needs no type."""
    settings = config.model.get('data_preprocessor') or config.get('data_preprocessor') or {}
    return dict(type='ClsDataPreprocessor') | settings if config.default_scope == 'mmpretrain' else settings


def name_host_loading(config: Config) -> None:
    """Name `LoadImageFromFile` in place of `LOAD_CHANNELS`, for the inferencers and mmdeploy, which get arrays."""
    for step in list(find_dicts(config)):
        if step.get('type') == LOAD_CHANNELS:
            step.clear()
            step['type'] = 'LoadImageFromFile'


def without_annotations(steps: list[dict]) -> list[dict]:
    """A copy of a pipeline for images alone, without the steps that load annotations, also in multi-scale testing."""
    kept = []
    for step in copy.deepcopy(steps):
        if loads_annotations(step):
            continue
        if str(step['type']).endswith('TestTimeAug'):
            choices = (without_annotations(group) for group in step['transforms'])
            step['transforms'] = [group for group in choices if group]
        kept.append(step)
    return kept


def is_panoptic(config: Config) -> bool:
    """Whether a model of mmdet predicts panoptic segmentation."""
    # Instance segmentation with Mask2Former has a panoptic head without stuff.
    return (config.model.get('panoptic_fusion_head') or {}).get('num_stuff_classes', 0) > 0


def loads_masks(config: Config) -> bool:
    return any(step.get('with_mask') for step in find_dicts(config.get('train_dataloader')))


def load_ground_truth(config: Config) -> None:
    """Load the boxes of a detection config's test images, and the masks if its training loads them.

    The step is inserted before `PackDetInputs`, after the image was resized, so that boxes and masks keep the size of
    the file: mmdet draws them on that. A pipeline that already loads annotations (segmentation), or that packs its
    images inside another transform (multi-scale testing), is not changed.
    """
    steps = (step for step in find_dicts(config.get('train_dataloader')) if loads_annotations(step))
    load = copy.deepcopy(next(steps, dict(type='LoadAnnotations', with_bbox=True)))
    for dataset in find_datasets(config.test_dataloader):
        pipeline = dataset.get('pipeline', [])
        types = [step['type'] for step in pipeline]
        if 'PackDetInputs' in types and not any(map(loads_annotations, pipeline)):
            # The annotations are read from where the dataset reads its images, such as shards.
            backend = dict(backend_args=dataset.backend_args) if dataset.get('backend_args') else {}
            pipeline.insert(types.index('PackDetInputs'), {**load, **backend})


def prefix_of(dataset: dict) -> dict | str:
    """Where a dataset's files lie below its root: of ImageNet without a prefix in the folder of the split."""
    folder = dataset.get('split') if type_name(dataset).startswith('ImageNet') else None  # no folder elsewhere
    return dataset.get('data_prefix') or folder or {}  # mmpretrain's may be a string


def loads_annotations(step: dict) -> bool:
    """Whether a step of a pipeline loads annotations."""
    return str(step.get('type')).endswith(LOAD_ANNOTATIONS)


def add_hook(config: Config, name: str, **settings: object) -> None:
    """Add a hook of this package, in place of one of its kind, which the config of a work dir may have."""
    remove_hook(config, name)
    config.custom_hooks = [*config.custom_hooks, dict(type=f'bioattn_mm.{name}', **settings)]


def remove_hook(config: Config, name: str) -> None:
    config.custom_hooks = [hook for hook in config.get('custom_hooks') or [] if type_name(hook) != name]


def as_list(value: object) -> list:
    """A part of a config that may be a list, one entry of it, or nothing, as a list."""
    return value if isinstance(value, list) else [value] if value else []


def type_name(settings: object) -> str:
    """The name of the class that a dict of a config builds, without its scope; '' of what builds none."""
    kind = settings.get('type') if isinstance(settings, dict) else None
    return kind.rpartition('.')[2] if isinstance(kind, str) else getattr(kind, '__name__', '')


def find_dicts(node: object) -> Iterator[ConfigDict]:
    """All dicts in nested dicts and lists, each before those inside it."""
    return (found for found in _find(node) if isinstance(found, (dict, Config)))


def find_lists(node: object) -> Iterator[list]:
    return (found for found in _find(node) if isinstance(found, list))


def _find(node: object) -> Iterator[object]:
    if isinstance(node, (dict, Config, list, tuple)):
        yield node
        for value in node if isinstance(node, (list, tuple)) else node.values():
            yield from _find(value)


def map_values(node: object, function: Callable[[str, object], object], path: str = '') -> object:
    """A copy of nested dicts and lists with every value replaced by `function(path, value)`, of a path with dots."""
    node = function(path, node)
    if isinstance(node, dict):
        return {key: map_values(value, function, f'{path}.{key}' if path else key) for key, value in node.items()}
    if isinstance(node, list):
        return [map_values(value, function, f'{path}.{index}') for index, value in enumerate(node)]
    return node


def is_one_of(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path fits one of the patterns, in which '*' stands for anything."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)
