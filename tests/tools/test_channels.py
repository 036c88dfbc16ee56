"""Own data that are not RGB in 8 bits: a detector from training to prediction, and an exported classifier."""

from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from bioattn_mm import Predictor
from bioattn_mm.checkpoints import read_state_dict
from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.export.formats import FOR_ONNX
from bioattn_mm.runtime import Model
from bioattn_mm.training.config.loading import load_config

from ..needs import needs
from ..own_folders import convert_images, write_coco_folder
from .random_weights import random_checkpoint
from .running import ROOT, InProcess, metrics_of_test
from .small_images import DETECTOR, SMALL

FEW = ('train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2')


def write(path: Path, image: np.ndarray) -> None:
    cv2.imwrite(str(path), image[..., 0].astype(np.uint16) * 3 + 40000)


def test_a_detector(tmp_path: Path, tool: InProcess) -> None:
    convert_images(write_coco_folder(tmp_path / 'parts', range(8)), write, '.png')
    random_checkpoint(tmp_path / 'rgb.pth', DETECTOR)
    start = ('--load-from', 'rgb.pth')
    tool(tmp_path, 'train.py', DETECTOR, '--data', 'parts', '--mini', *start, '--cfg-options', *SMALL, *FEW)
    work_dir = tmp_path / 'work_dirs/mask_rcnn_small_parts_mini'
    config, checkpoint = work_dir / 'mask_rcnn_small.py', work_dir / 'iter_2.pth'
    saved = Config.fromfile(config)
    assert saved.model.backbone.in_channels == 1 and 40000 < saved.model.data_preprocessor.mean[0] < 41000
    # It begins with the weights of an RGB model; two steps change them little.
    name = 'backbone.stages.0.patch_embed.proj.weight'
    rgb, weight = (read_state_dict(str(path))[name] for path in (tmp_path / 'rgb.pth', checkpoint))
    torch.testing.assert_close(weight, rgb.sum(1, keepdim=True), atol=0.005, rtol=0)
    assert weight.std() > 0.03

    tool(tmp_path, 'test.py', config, checkpoint, '--work-dir', 'tested', '--show-dir', 'shown')
    assert 'coco/bbox_mAP' in metrics_of_test(tmp_path / 'tested')
    (drawn, *_) = (tmp_path / 'shown').rglob('vis_image/*.png')
    assert np.asarray(Image.open(drawn)).std() > 10

    tool(tmp_path, 'predict.py', config, checkpoint, 'parts/images', '--out', 'predicted')
    assert len(list((tmp_path / 'predicted/overlays').iterdir())) == 8


@needs(*FOR_ONNX)
def test_an_exported_classifier(tmp_path: Path, tool: InProcess) -> None:
    """It has the scores of the checkpoint, for files of images of 16 bits."""
    draw = np.random.default_rng(0)
    for name in ('birch', 'oak'):
        (tmp_path / 'leaves' / name).mkdir(parents=True)
        for index in range(3):
            image = draw.integers(30000, 30256, (80, 70 + index, 4), dtype=np.uint16)
            np.save(tmp_path / 'leaves' / name / f'{index}.npy', image)
    config = load_config(ROOT / 'tests/tools/convit_small.py', data=DataArguments(str(tmp_path / 'leaves')))
    config.dump(tmp_path / 'classifier.py')
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        torch.save(dict(state_dict=MODELS.build(config.model).state_dict()), tmp_path / 'classifier.pth')
    options = ('--via', 'torch', '--to', 'onnx', '--size', '64x64', '--out', 'exported')
    tool(tmp_path, 'export.py', 'classifier.py', 'classifier.pth', *options)
    (exported,) = (tmp_path / 'exported').glob('*.onnx')
    files = sorted((tmp_path / 'leaves').rglob('*.npy'))
    predictor = Predictor(tmp_path / 'classifier.py', tmp_path / 'classifier.pth', device='cpu')
    scores = np.array([sample.pred_score.tolist() for sample in predictor(files)])
    assert np.ptp(scores[:, 0]) > 1e-4
    np.testing.assert_allclose([result.scores for result in Model(exported)(files)], scores, atol=1e-5)
