"""Options that make the images of a training small."""

from pathlib import Path

from .running import ROOT

TRAIN = 'train_dataloader.dataset.pipeline'


def small_training(config: str) -> tuple[str, ...]:
    """Options for a config whose name begins with that of its framework; steps of its pipeline have their place."""
    name = Path(config).stem
    if name.startswith('upernet'):
        return (f'{TRAIN}.2.scale=(256,64)', f'{TRAIN}.3.crop_size=(64,64)', 'model.data_preprocessor.size=(64,64)')
    if name.startswith('mask2former') and not name.endswith('ade20k'):  # mmdet's
        crop = (f'{TRAIN}.3.scale=(96,96)', f'{TRAIN}.4.crop_size=(64,64)')
        if 'ade20k' in name:
            crop = (f'{TRAIN}.2.scales=[64,96]', f'{TRAIN}.3.crop_size=(64,64)')
        return *crop, 'model.data_preprocessor.batch_augments.0.size=(64,64)', 'model.train_cfg.num_points=256'
    if name.startswith('mask2former'):
        return (
            f'{TRAIN}.2.scales=[64,96]', f'{TRAIN}.3.crop_size=(64,64)', 'model.data_preprocessor.size=(64,64)',
            'model.decode_head.train_cfg.num_points=256',
        )  # fmt: skip
    if name.startswith('dino'):
        return (
            f'{TRAIN}.3.transforms.0.0.scales=[(128,96)]', f'{TRAIN}.3.transforms.1.0.scales=[(128,96)]',
            f'{TRAIN}.3.transforms.1.1.crop_size=(64,96)', f'{TRAIN}.3.transforms.1.2.scales=[(128,96)]',
        )  # fmt: skip
    assert name.startswith('mask_rcnn')
    return (f'{TRAIN}.2.scale=(128,96)',)


def small_images(mode: str, number: int) -> list[str]:
    """Options that make the images of a 'val' or 'test' dataloader few and small."""
    dataset = f'{mode}_dataloader.dataset'
    return [f'{dataset}.indices={number}', f'{dataset}.pipeline.1.scale=(128,96)']


# The start of workers takes longer than what they do here.
NO_WORKERS = [
    *(f'{split}_dataloader.num_workers=0' for split in ('train', 'val', 'test')),
    *(f'{split}_dataloader.persistent_workers=False' for split in ('train', 'val', 'test')),
]
# And the images of about their own size.
SMALL = [
    *NO_WORKERS,
    'train_dataloader.dataset.pipeline.2.scale=(160,128)',
    *(f'{split}_dataloader.dataset.pipeline.1.scale=(160,128)' for split in ('val', 'test')),
    *(f'{split}_evaluator.metric=bbox' for split in ('val', 'test')),
]
DETECTOR = str(ROOT / 'tests/tools/mask_rcnn_small.py')
