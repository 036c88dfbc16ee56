"""tools/test.py with the authors' classifiers."""

from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from .. import parity
from .running import InProcess, metrics_of_test

MEAN, STD = 127.0, 60.0
NUM_CLASSES, NUM_IMAGES = 10, 6
CONFIG = dict(
    default_scope='mmpretrain',
    model=dict(
        type='ImageClassifier',
        backbone=dict(type='bioattn_mm.ConViT', arch='tiny', out_indices=(11,), out_type='cls_token'),
        head=dict(type='LinearClsHead', num_classes=NUM_CLASSES, in_channels=192),
        data_preprocessor=dict(mean=[MEAN] * 3, std=[STD] * 3),
    ),
    test_cfg=dict(),
    test_dataloader=dict(
        batch_size=2,
        num_workers=0,
        dataset=dict(
            type='CustomDataset',
            data_prefix=dict(img_path='val'),
            classes=[f'class_{label}' for label in range(NUM_CLASSES)],
            pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')],
        ),
        sampler=dict(type='DefaultSampler', shuffle=False),
    ),
    test_evaluator=[
        dict(type='Accuracy', topk=(1,)),
        dict(type='SingleLabelMetric', items=('recall',), average=None),
    ],
)


@torch.no_grad()
def test_released_classifier(tool: InProcess, tmp_path: Path) -> None:
    """All but the last two images are in the folder of the class that the file's own weights give.

    The metric of each class, a list, is in mmengine's log; the last line has the numbers.
    """
    weights = parity.released_state_dict('convit_tiny')
    weights.update({name: weights[name][:NUM_CLASSES] for name in ('head.weight', 'head.bias')})
    torch.save({'model': weights, 'epoch': 299}, tmp_path / 'convit_tiny.pth')
    Config(CONFIG).dump(tmp_path / 'convit_tiny.py')

    images = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, 64, 96, 3), dtype=np.uint8)
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'convit_tiny.pth'))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(dict(CONFIG['model'], init_cfg=init_cfg))
    model.init_weights()
    labels = model.eval()((torch.from_numpy(images).permute(0, 3, 1, 2) - MEAN) / STD).argmax(1).tolist()
    for label in range(NUM_CLASSES):
        (tmp_path / f'val/class_{label}').mkdir(parents=True)
    for index, (image, label) in enumerate(zip(images, labels)):
        folder = f'class_{(label + (index >= NUM_IMAGES - 2)) % NUM_CLASSES}'
        Image.fromarray(image[..., ::-1]).save(tmp_path / f'val/{folder}/{index}.png')  # read as BGR

    printed = tool(tmp_path, 'test.py', 'convit_tiny.py', 'convit_tiny.pth', '--work-dir', 'tested')
    assert round(metrics_of_test(tmp_path / 'tested')['accuracy/top1'], 2) == 66.67
    assert printed.endswith('convit_tiny.py convit_tiny.pth\naccuracy/top1 66.67\n')
