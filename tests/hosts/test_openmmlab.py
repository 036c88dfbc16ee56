"""The scripts and inference APIs of mmdet and mmseg on the configs of this package."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import mmcv
import numpy as np
import pytest

from tests.conftest import ROOT

MASK_RCNN, UPERNET = (ROOT / f'tests/tools/{name}_small.py' for name in ('mask_rcnn', 'upernet'))
DINO = ROOT / 'configs/transnext/dino_4scale_micro_coco.py'
IMAGES = 'data/ade/ADEChallengeData2016/images'
# The work dir of a training has them in its config, with which the rest is done.
OPTIONS = ['--cfg-options', 'model.backbone.init_cfg=None', 'train_dataloader.num_workers=1']
for split in ('val', 'test'):
    OPTIONS += [f'{split}_dataloader.num_workers=0', f'{split}_dataloader.persistent_workers=False']
    OPTIONS += [f'{split}_dataloader.dataset.pipeline.1.scale=(256,128)']
DETECTORS = """
import copy, json, sys
import bioattn_mm
import torch
from mmdet.apis import DetInferencer, inference_detector, init_detector
from mmengine.config import Config
*paths, image = sys.argv[1:]
mask_rcnn, dino = map(Config.fromfile, paths)
dino.test_dataloader.dataset.pipeline[1].scale = (256, 128)
dino.model.num_queries = dino.model.test_cfg.max_per_img = 20

def found(config, weights):
    inferencer = DetInferencer(copy.deepcopy(config), weights, device='cpu', show_progress=False)
    results = inferencer(image, out_dir=f'drawn_{weights}', pred_score_thr=0.0)
    model = init_detector(copy.deepcopy(config), weights, device='cpu')
    instances = inference_detector(model, image).pred_instances
    return dict(
        inferencer=results['predictions'][0]['scores'], detector=instances.scores.tolist(),
        masks='masks' in instances and len(instances.masks), type=f'{type(model).__module__}.{type(model).__name__}',
    )

torch.manual_seed(0)
untrained = init_detector(copy.deepcopy(dino), device='cpu')  # which changes the config
untrained.init_weights()  # init_detector without a checkpoint leaves DINO's level embedding as memory was
torch.save(dict(state_dict=untrained.state_dict(), meta={}), 'dino.pth')
print(json.dumps(dict(mask_rcnn=found(mask_rcnn, 'detector/epoch_1.pth'), dino=found(dino, 'dino.pth'))))
"""
SEGMENTOR = """
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


@pytest.mark.slow  # mmdet's train.py begins in a new process, and so does its worker
def test_mmdet(place: Path, python: Callable, forked: Callable) -> None:
    process = python(
        '-m', 'bioattn_mm', 'mmdet/.mim/tools/train.py', MASK_RCNN, '--work-dir', 'detector', *OPTIONS,
        'train_cfg.max_epochs=1', 'env_cfg.mp_cfg.mp_start_method=spawn',
        'train_dataloader.dataset.pipeline.2.scale=(256,128)',
    )  # fmt: skip
    # Neither process has imported mmdet before mmcv.ops was there.
    assert 'without mmcv.ops' not in process.stderr
    assert 'coco/segm_mAP: ' in process.stdout
    config = place / 'detector/mask_rcnn_small.py'
    process = forked(  # which draws without ground truth
        '-m', 'bioattn_mm', 'mmdet/.mim/tools/test.py', config, 'detector/epoch_1.pth', '--work-dir', 'tested',
        '--out', 'predicted.pkl', '--show-dir', 'shown',
    )  # fmt: skip
    assert 'coco/segm_mAP: ' in process.stdout
    assert len(list((place / 'tested').glob('*/shown/*.jpg'))) == 2

    tested = pickle.loads((place / 'predicted.pkl').read_bytes())[0]
    results = json.loads(forked('-c', DETECTORS, config, DINO, tested['img_path']).stdout.splitlines()[-1])
    expected = tested['pred_instances']['scores'].tolist()
    assert len(expected) == results['mask_rcnn']['masks'] == len(results['dino']['detector']) == 20
    assert results['mask_rcnn']['inferencer'] == pytest.approx(expected)
    assert results['mask_rcnn']['detector'] == pytest.approx(expected)
    assert results['dino']['type'] == 'bioattn_mm.mmcv_ops.dino.CompatibleDINO'
    assert results['dino']['inferencer'] == pytest.approx(results['dino']['detector'])
    for weights in ('detector/epoch_1.pth', 'dino.pth'):
        assert (place / f'drawn_{weights}' / 'vis' / Path(tested['img_path']).name).is_file()


@pytest.mark.slow
def test_mmseg(place: Path, forked: Callable) -> None:
    process = forked(
        '-m', 'bioattn_mm', 'mmseg/.mim/tools/train.py', UPERNET, '--work-dir', 'segmentor', *OPTIONS,
        'train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2',
        'test_pipeline.1.scale=(256,128)',  # which mmseg's APIs take
    )  # fmt: skip
    assert 'mIoU: ' in process.stdout
    trained = ('segmentor/upernet_small.py', 'segmentor/iter_2.pth')
    process = forked(
        '-m', 'bioattn_mm', 'mmseg/.mim/tools/test.py', *trained, '--work-dir', 'labelled', '--out', 'labels',
        '--show-dir', 'masks',
    )  # fmt: skip
    assert 'mIoU: ' in process.stdout
    assert len(list((place / 'masks').rglob('*.png'))) == 2

    image = min((place / IMAGES / 'validation').iterdir())
    forked('-c', SEGMENTOR, *trained, image.relative_to(place))
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
    script, out = 'mmseg/.mim/tools/analysis_tools/browse_dataset.py', place / 'browsed'
    forked('-m', 'bioattn_mm', script, UPERNET, '--not-show', '--output-dir', out)
    drawn = [path for path in out.rglob('*') if path.is_file()]
    assert {path.name for path in drawn} == {path.name for path in (place / IMAGES / 'training').iterdir()}
    assert mmcv.imread(str(drawn[0])).std() > 10
