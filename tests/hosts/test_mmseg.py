"""mmseg's own scripts and inference APIs on the configs of this package."""

from collections.abc import Callable
from pathlib import Path

import mmcv
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
UPERNET = ROOT / 'tests/hosts/upernet_small.py'
IMAGES = 'data/ade/ADEChallengeData2016/images'
APIS = """
import sys
import bioattn_mm
import numpy as np
from mmseg.apis import MMSegInferencer, inference_model, init_model
config, weights, image = sys.argv[1:]
inferencer = MMSegInferencer(config, weights, device='cpu', show_progress=False)
inferencer(image, out_dir='inferred')
model = init_model(config, weights, device='cpu')
np.save('labels.npy', inference_model(model, image).pred_sem_seg.data[0].numpy())
"""


@pytest.fixture(scope='module')
def trained(place: Path, forked: Callable) -> Path:
    """The folder in which mmseg's train.py has left a checkpoint."""
    process = forked(
        '-m', 'bioattn_mm', 'mmseg/.mim/tools/train.py', UPERNET, '--work-dir', 'segmentor', '--cfg-options',
        'model.backbone.init_cfg=None', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2',
        'default_hooks.checkpoint.interval=2', 'train_dataloader.num_workers=1', 'val_dataloader.num_workers=0',
        'val_dataloader.persistent_workers=False',
    )  # fmt: skip
    assert 'mIoU: ' in process.stdout
    return place / 'segmentor'


@pytest.mark.slow
def test_inference_apis_and_test(place: Path, trained: Path, forked: Callable) -> None:
    process = forked(
        '-m', 'bioattn_mm', 'mmseg/.mim/tools/test.py', UPERNET, trained / 'iter_2.pth', '--work-dir', 'labelled',
        '--out', 'labels', '--show-dir', 'masks', '--cfg-options', 'test_dataloader.num_workers=0',
        'test_dataloader.persistent_workers=False',
    )  # fmt: skip
    assert 'mIoU: ' in process.stdout
    assert len(list((place / 'masks').rglob('*.png'))) == 2

    image = sorted((place / IMAGES / 'validation').iterdir())[0]
    forked('-c', APIS, UPERNET, trained / 'iter_2.pth', image.relative_to(place))
    labels = np.load(place / 'labels.npy')
    assert labels.shape == mmcv.imread(str(image)).shape[:2]
    assert len(np.unique(labels)) > 1
    # test.py writes ADE20K's numbers, in which 0 is no class.
    tested = mmcv.imread(str(place / 'labels' / f'{image.stem}.png'), 'unchanged')
    assert (tested == labels + 1).all()
    (inferred,) = (place / 'inferred/pred').iterdir()
    assert (mmcv.imread(str(inferred), 'unchanged') == labels).all()
    assert mmcv.imread(str(place / 'inferred/vis' / image.name)).std() > 10


def test_browse_dataset(place: Path, forked: Callable) -> None:
    forked(
        '-m', 'bioattn_mm', 'mmseg/.mim/tools/analysis_tools/browse_dataset.py', UPERNET,
        '--not-show', '--output-dir', 'browsed_masks',
    )  # fmt: skip
    names = sorted(path.name for path in (place / IMAGES / 'training').iterdir())
    drawn = list((place / 'browsed_masks').rglob('*.jpg')) + list((place / 'browsed_masks').rglob('*.png'))
    assert sorted(path.name for path in drawn) == names
    assert mmcv.imread(str(drawn[0])).std() > 10
