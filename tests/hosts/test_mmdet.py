"""mmdet's own scripts and inference APIs on the configs of this package."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import mmcv
import pytest

pytestmark = pytest.mark.slow  # mmdet's train.py begins in a new process, and so does its worker

ROOT = Path(__file__).parents[2]
MASK_RCNN, DINO = (ROOT / f'tests/hosts/{name}_small.py' for name in ('mask_rcnn', 'dino'))
ONE_PROCESS = ('test_dataloader.num_workers=0', 'test_dataloader.persistent_workers=False')

# A config of mmdet's own with one of our backbones in it.
STOCK = """
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
model = dict(
    backbone=dict(_delete_=True, type='bioattn_mm.TransNeXt', arch='micro'),
    neck=dict(in_channels=[48, 96, 192, 384]),
    test_cfg=dict(rcnn=dict(score_thr=0.0)),
)
"""
APIS = """
import json, sys
import bioattn_mm
import torch
from mmdet.apis import DetInferencer, inference_detector, init_detector
mask_rcnn, dino, image = sys.argv[1:]

def found(config, weights):
    inferencer = DetInferencer(config, weights, device='cpu', show_progress=False)
    results = inferencer(image, out_dir=f'drawn_{weights}', pred_score_thr=0.0)
    model = init_detector(config, weights, device='cpu')
    instances = inference_detector(model, image).pred_instances
    masks = instances.masks.flatten(1).sum(1).tolist() if 'masks' in instances else []
    return dict(
        inferencer=results['predictions'][0]['scores'], detector=instances.scores.tolist(), masks=masks,
        type=f'{type(model).__module__}.{type(model).__name__}',
    )

torch.manual_seed(0)
untrained = init_detector(dino, device='cpu')
untrained.init_weights()  # init_detector without a checkpoint leaves DINO's level embedding as memory was
torch.save(dict(state_dict=untrained.state_dict(), meta={}), 'dino.pth')
small = {'test_dataloader.dataset.pipeline.1.scale': (256, 128)}
stock = init_detector('stock.py', device='cpu', cfg_options=small)
print(json.dumps(dict(
    mask_rcnn=found(mask_rcnn, 'trained/epoch_1.pth'),
    dino=found(dino, 'dino.pth'),
    stock=[type(stock.backbone).__module__, len(inference_detector(stock, image).pred_instances)],
)))
"""


@pytest.fixture(scope='module')
def trained(place: Path, python: Callable) -> Path:
    """The folder in which mmdet's train.py has left a checkpoint, after an epoch with a spawned worker."""
    process = python(
        '-m', 'bioattn_mm', 'mmdet/.mim/tools/train.py', MASK_RCNN, '--work-dir', 'trained', '--cfg-options',
        'model.backbone.init_cfg=None', 'train_cfg.max_epochs=1', 'env_cfg.mp_cfg.mp_start_method=spawn',
        'train_dataloader.num_workers=1', 'val_dataloader.num_workers=0', 'val_dataloader.persistent_workers=False',
        'train_dataloader.dataset.pipeline.2.scale=(256,128)',
    )  # fmt: skip
    # Neither process has imported mmdet before mmcv.ops was there.
    assert 'without mmcv.ops' not in process.stderr
    assert 'coco/segm_mAP: ' in process.stdout
    return place / 'trained'


@pytest.fixture(scope='module')
def tested(place: Path, trained: Path, forked: Callable) -> list[dict]:
    """What mmdet's test.py predicts with that checkpoint; it draws without ground truth."""
    process = forked(
        '-m', 'bioattn_mm', 'mmdet/.mim/tools/test.py', MASK_RCNN, trained / 'epoch_1.pth', '--work-dir', 'tested',
        '--out', 'predicted.pkl', '--show-dir', 'shown', '--cfg-options', *ONE_PROCESS,
    )  # fmt: skip
    assert 'coco/segm_mAP: ' in process.stdout
    assert len(list((place / 'tested').glob('*/shown/*.jpg'))) == 2
    return pickle.loads((place / 'predicted.pkl').read_bytes())


def test_inference_apis(place: Path, tested: list[dict], forked: Callable) -> None:
    (place / 'stock.py').write_text(STOCK)
    image = tested[0]['img_path']
    results = json.loads(forked('-c', APIS, MASK_RCNN, DINO, image).stdout.splitlines()[-1])

    expected = tested[0]['pred_instances']['scores'].tolist()
    assert len(expected) == 20
    assert results['mask_rcnn']['inferencer'] == pytest.approx(expected)
    assert results['mask_rcnn']['detector'] == pytest.approx(expected)
    assert len(results['mask_rcnn']['masks']) == 20
    assert results['dino']['type'] == 'bioattn_mm.mmcv_ops.dino.CompatibleDINO'
    assert len(results['dino']['detector']) == 20
    assert results['dino']['inferencer'] == pytest.approx(results['dino']['detector'])
    assert results['stock'] == ['bioattn_mm.systems.transnext.backbone', 100]
    for weights in ('trained/epoch_1.pth', 'dino.pth'):
        drawn = mmcv.imread(str(place / f'drawn_{weights}' / 'vis' / Path(image).name))
        original = mmcv.imread(str(place / image))
        assert drawn.shape == original.shape and (drawn != original).any()


def test_browse_dataset(place: Path, forked: Callable) -> None:
    forked(
        '-m', 'bioattn_mm', 'mmdet/.mim/tools/analysis_tools/browse_dataset.py', MASK_RCNN,
        '--not-show', '--output-dir', 'browsed',
    )  # fmt: skip
    names = sorted(path.name for path in (place / 'data/coco/train2017').iterdir())
    assert sorted(path.name for path in (place / 'browsed').iterdir()) == names
    assert mmcv.imread(str(place / 'browsed' / names[0])).std() > 10
