"""tools/test.py with the authors' classifiers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from .. import parity
from .running import InProcess, metrics_of_test

MEAN, STD = 127.0, 60.0
NUM_CLASSES, NUM_IMAGES = 10, 6


@pytest.fixture(scope='module')
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config of ConViT's classifier, a file like its release, and images, of which it gets 4 of 6."""
    folder = tmp_path_factory.mktemp('classification')
    weights = parity.released_state_dict('convit_tiny')
    for name in ('head.weight', 'head.bias'):
        weights[name] = weights[name][:NUM_CLASSES]
    torch.save({'model': weights, 'epoch': 299}, folder / 'convit_tiny.pth')
    dataset = dict(
        type='CustomDataset',
        data_root=str(folder / 'val'),
        data_prefix=dict(img_path=''),
        classes=[f'class_{label}' for label in range(NUM_CLASSES)],
        pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')],
    )
    sampler = dict(type='DefaultSampler', shuffle=False)
    model = dict(
        type='ImageClassifier',
        backbone=dict(type='bioattn_mm.ConViT', arch='tiny', out_indices=(11,), out_type='cls_token'),
        head=dict(type='LinearClsHead', num_classes=NUM_CLASSES, in_channels=192),
        data_preprocessor=dict(mean=[MEAN] * 3, std=[STD] * 3),
    )
    recall = dict(type='SingleLabelMetric', items=('recall',), average=None)
    config = Config(dict(default_scope='mmpretrain', model=model, test_cfg=dict()))
    config.test_dataloader = dict(batch_size=2, num_workers=0, dataset=dataset, sampler=sampler)
    config.test_evaluator = [dict(type='Accuracy', topk=(1,)), recall]
    config.dump(folder / 'convit_tiny.py')
    save_images(folder / 'val', predictions(config, folder / 'convit_tiny.pth'))
    return folder


def images() -> list[np.ndarray]:
    """Images of random pixels, of 64 x 96 pixels."""
    generator = np.random.default_rng(0)
    return list(generator.integers(0, 256, (NUM_IMAGES, 64, 96, 3), dtype=np.uint8))


@torch.no_grad()
def predictions(config: Config, checkpoint: Path) -> list[int]:
    """The classes that the released file gives, by the model's own `init_cfg`."""
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(dict(config.model, init_cfg=dict(type='Pretrained', checkpoint=str(checkpoint))))
    model.init_weights()
    batch = torch.stack([torch.from_numpy(image).permute(2, 0, 1) for image in images()]).float()
    return model.eval()((batch - MEAN) / STD).argmax(1).tolist()


def save_images(folder: Path, labels: list[int]) -> None:
    """Write the images into the folders of their classes, the last two into those of others."""
    for label in range(NUM_CLASSES):
        (folder / f'class_{label}').mkdir(parents=True)
    for index, (image, label) in enumerate(zip(images(), labels)):
        wrong = index >= NUM_IMAGES - 2
        path = folder / f'class_{(label + wrong) % NUM_CLASSES}' / f'{index}.png'
        Image.fromarray(image[..., ::-1]).save(path)  # read as BGR


def test_released_classifier(place: Path, tool: InProcess, tmp_path: Path) -> None:
    """The metric of each class, a list, is in mmengine's log; the last line has the numbers."""
    printed = tool(place, 'test.py', 'convit_tiny.py', 'convit_tiny.pth', '--work-dir', tmp_path)
    assert metrics_of_test(tmp_path)['accuracy/top1'] == pytest.approx(100 * (NUM_IMAGES - 2) / NUM_IMAGES)
    assert printed.endswith('convit_tiny.py convit_tiny.pth\naccuracy/top1 66.67\n')
