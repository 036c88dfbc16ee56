"""Tests of a classifier's config on ImageNet's other test sets."""

from mmengine.config import Config

from ..datasets.imagenet import NUM_CLASSES
from ..errors import InputError
from .pipelines import find_datasets

# Type and default folder of the data set, by its name on the command line.
TEST_SETS = dict(
    val=('ImageNet', 'data/imagenet'),
    v2=('bioattn_mm.ImageNetV2', 'data/imagenetv2-matched-frequency-format-val'),
    a=('bioattn_mm.ImageNetA', 'data/imagenet-a'),
    r=('bioattn_mm.ImageNetR', 'data/imagenet-r'),
    sketch=('bioattn_mm.ImageNetSketch', 'data/sketch'),
    c=('bioattn_mm.ImageNetC', 'data/imagenet-c'),
)


def set_test_set(config: Config, name: str, data_root: str | None = None) -> None:
    """Test a classifier of ImageNet-1k on another test set, with the config's own pipeline.

    The metrics are top-1 and top-5 accuracy, those of A and R among their 200 classes, and of C the mCE. Images of C
    are cropped already and are tested whole, as its authors do.

    Args:
        config: Changed in place.
        name: A key of `TEST_SETS`.
        data_root: Folder of the images (default: see `TEST_SETS`).

    Raises:
        InputError: The config is not one of a classifier of the 1000 classes.
    """
    num_classes = config.model.get('head', {}).get('num_classes')
    if config.default_scope != 'mmpretrain' or num_classes != NUM_CLASSES:
        raise InputError(
            f"ImageNet's test sets are for classifiers of its {NUM_CLASSES} classes: {config.filename} is a config "
            f'of {config.default_scope} with num_classes={num_classes} in its head'
        )
    kind, default_root = TEST_SETS[name]
    dataset = dict(type=kind, data_root=data_root or default_root)
    if name == 'val':
        dataset['split'] = 'val'
    pipeline = next(find_datasets(config.test_dataloader)).pipeline
    config.test_dataloader.dataset = dict(dataset, pipeline=pipeline)
    if name == 'c':
        config.test_evaluator = dict(type='bioattn_mm.CorruptionError')
        for steps in (pipeline, config.get('tta_pipeline', [])):
            crop_nothing(steps)
    elif name != 'val':
        config.test_evaluator = dict(type='bioattn_mm.SubsetAccuracy', topk=(1, 5))


def tests_imagenet(config: Config) -> bool:
    """Whether a config's test set is ImageNet-1k's."""
    return all(dataset['type'] == 'ImageNet' for dataset in find_datasets(config.test_dataloader))


def crop_nothing(pipeline: list[dict]) -> None:
    """Resize the short side of images to the size of the crop, so that square images lose nothing."""
    crops = [step for step in pipeline if step['type'] == 'CenterCrop']
    for step in pipeline:
        if step['type'] == 'ResizeEdge' and crops:
            step['scale'] = crops[0]['crop_size']
