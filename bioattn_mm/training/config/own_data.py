"""Setting own data in a config."""

from pathlib import Path

from mmengine.config import Config

from ...checkpoints import dataset_meta_of
from ...data.formats.arguments import DataArguments
from ...data.formats.folders import OwnData, is_temporary
from ...errors import InputError, printable
from ...runtime.files import atomic_write
from .channels import use_channels
from .classes import DATALOADERS, EVALUATORS, leaf_dataset_configs, set_classes
from .pipelines import as_list, find_dicts, is_panoptic, loads_masks, type_name

# What stays of the config's own datasets.
KEPT_OF_DATASET = ('pipeline', 'filter_cfg', 'test_mode', 'serialize_data', 'max_refetch')
# Wrappers that do not stay: the threshold of the last one is of other images.
REPEATING = ('RepeatDataset', 'ConcatDataset', 'ClassBalancedDataset')
DATA_FOLDER = 'data'  # in a work dir
# Type and arguments of the metric of own data, by the library.
OWN_EVALUATORS = dict(
    mmdet=('CocoMetric', dict(metric='bbox')),
    mmseg=('IoUMetric', dict(iou_metrics=['mIoU'])),
    mmpretrain=('Accuracy', dict(topk=(1,))),
)


def use_own_data(config: Config, arguments: DataArguments) -> OwnData:
    """Let a config of a detector, segmentor or classifier train, validate and test on own data.

    What the datasets need beyond the folder, such as the list of validation images where they are drawn at random, is
    written to a temporary folder; `keep_data_files` moves it to a work dir. Datasets, evaluators and classes change
    (see `set_classes`), the learning rate in proportion to the batch, for images that are not RGB in 8 bits what
    `use_channels` says, and `own_data`, lines for the log.

    Raises:
        InputError: The data are in no layout that is read, or do not fit the model.
    """
    if is_panoptic(config):
        raise InputError(
            f'own data are objects or label maps, {config.filename} learns panoptic segmentation: take a config of '
            'either, such as configs/transnext/mask2former_tiny_coco.py or mask2former_tiny_ade20k.py'
        )
    # Imported here: a model needs the packages of its own task alone.
    if config.default_scope == 'mmdet':
        from ...data.formats.detectors import read_objects

        own = read_objects(arguments, loads_masks(config))
    elif config.default_scope == 'mmseg':
        from ...data.formats.label_maps import read_masks

        own = read_masks(arguments)
    elif config.default_scope == 'mmpretrain':
        from ...data.formats.class_folders import read_class_folders

        own = read_class_folders(arguments)
    else:
        raise InputError(
            f'own data are for detectors, segmentors and classifiers, {config.filename} is a config of '
            f'{config.default_scope}'
        )
    for key, split in zip(DATALOADERS, ('train', 'val', 'test')):
        dataset = own.datasets.get('val' if split == 'test' and split not in own.datasets else split)
        if dataset and config.get(key):
            config[key].dataset = _with_dataset(config[key].dataset, dataset)
    for step in find_dicts(config):
        if str(step.get('type')).endswith('LoadAnnotations'):
            step.pop('reduce_zero_label', None)  # the dataset says it
    use_channels(config, own, arguments)
    _set_evaluators(config, own)
    set_classes(config, own.classes, own.palette)
    if (config.get('auto_scale_lr') or {}).get('base_batch_size'):
        config.auto_scale_lr.enable = True
    number = f'{len(own.classes)} classes: {", ".join(own.classes)}'
    config.own_data = [printable(line) for line in (number, *own.notes)]
    return own


def keep_data_files(config: Config, work_dir: str) -> None:
    """Move the files that `use_own_data` wrote for a config to its work dir, and name them there in the config."""
    folder = Path(work_dir) / DATA_FOLDER
    for node in find_dicts(config):
        for key, value in node.items():
            if isinstance(value, str) and is_temporary(Path(value)):
                folder.mkdir(parents=True, exist_ok=True)
                with atomic_write(folder / Path(value).name) as file:
                    file.write(Path(value).read_bytes())
                node[key] = str(folder / Path(value).name)


def check_classes(path: str, checkpoint: dict, config: Config) -> None:
    """Raise an `InputError` if a checkpoint names other classes than the own data of a config."""
    trained = dataset_meta_of(checkpoint).get('classes')
    classes = next(leaf_dataset_configs(config.test_dataloader.dataset)).metainfo['classes']
    if trained is not None and tuple(trained) != tuple(classes):
        raise InputError(
            f'{path} was trained on the classes {", ".join(trained)}, the data have {", ".join(classes)}: expected '
            'the same names in the same order'
        )


def _with_dataset(node: object, dataset: dict) -> dict:
    if isinstance(node, (list, tuple)):
        return _with_dataset(node[0], dataset)
    if 'datasets' in node:
        return _with_dataset(node['datasets'], dataset)
    if 'dataset' in node:
        inner = _with_dataset(node['dataset'], dataset)
        return inner if node['type'] in REPEATING else {**node, 'dataset': inner}
    return {**{key: node[key] for key in KEPT_OF_DATASET if key in node}, **dataset}


def _set_evaluators(config: Config, own: OwnData) -> None:
    """Let the evaluators read the data; those of other datasets become the ones of `OWN_EVALUATORS`."""
    for key, split in zip(EVALUATORS, ('val', 'test')):
        dataset = own.datasets.get(split) or own.datasets.get('val')
        if dataset is None or not config.get(key):
            continue
        kind, default = OWN_EVALUATORS[config.default_scope]
        kept = [evaluator for evaluator in as_list(config[key]) if type_name(evaluator) == kind]
        if not kept:
            kept = [dict(type=kind, **default)]
            checkpoints = config.get('default_hooks', {}).get('checkpoint', {})
            if checkpoints.get('save_best'):
                checkpoints.save_best = 'auto'
        if kind == 'CocoMetric':
            kept = [{**evaluator, 'ann_file': dataset['ann_file']} for evaluator in kept]
        config[key] = kept if isinstance(config[key], list) else kept[0]
