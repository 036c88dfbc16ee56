"""What a test does: ImageNet's other test sets, and several scales."""

from mmengine.config import Config

from ...data.classification import NUM_CLASSES
from ...errors import InputError
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
    """Test a classifier of ImageNet-1k on another of `TEST_SETS`, with the config's own pipeline.

    The metrics are top-1 and top-5 accuracy, those of A and R among their 200 classes, and of C the mCE. Images of C
    are cropped already and are tested whole, as its authors do.
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
            crops = [step for step in steps if step['type'] == 'CenterCrop']
            for step in steps:
                if step['type'] == 'ResizeEdge' and crops:  # square images lose nothing then
                    step['scale'] = crops[0]['crop_size']
    elif name != 'val':
        config.test_evaluator = dict(type='bioattn_mm.SubsetAccuracy', topk=(1, 5))


def merge_tta_overrides(config: Config) -> None:
    absent = [key for key in ('tta_model', 'tta_pipeline') if not config.get(key)]
    if absent:
        raise InputError(
            f'multi-scale testing needs {" and ".join(absent)} in the config, {config.filename} has none'
        )
    config.merge_from_dict(config.get('tta_overrides', {}))
