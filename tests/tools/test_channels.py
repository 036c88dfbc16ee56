"""A detector on own data of a single channel of 16 bits: training, test with drawings, prediction, bad files."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from ..own_folders import convert_images, write_coco_folder
from .running import InProcess, metrics_of_test
from .small_images import DETECTOR, SMALL

FEW = ('train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2')


def write(path: Path, image: np.ndarray) -> None:
    cv2.imwrite(str(path), image[..., 0].astype(np.uint16) * 3 + 40000)


def test_a_detector(tmp_path: Path, tool: InProcess) -> None:
    folder = convert_images(write_coco_folder(tmp_path / 'parts', range(8)), write, '.png')
    tool(tmp_path, 'train.py', DETECTOR, '--data', 'parts', '--mini', '--cfg-options', *SMALL, *FEW)
    work_dir = tmp_path / 'work_dirs/mask_rcnn_small_parts_mini'
    config, checkpoint = work_dir / 'mask_rcnn_small.py', work_dir / 'iter_2.pth'
    saved = Config.fromfile(config)
    assert saved.model.backbone.in_channels == 1 and 40000 < saved.model.data_preprocessor.mean[0] < 41000

    tool(tmp_path, 'test.py', config, checkpoint, '--work-dir', 'tested', '--show-dir', 'shown')
    assert 'coco/bbox_mAP' in metrics_of_test(tmp_path / 'tested')
    (drawn, *_) = (tmp_path / 'shown').rglob('vis_image/*.png')
    assert np.asarray(Image.open(drawn)).std() > 10

    # A picture of another kind does not end the run.
    Image.open(next((folder / 'images').iterdir())).convert('RGB').save(folder / 'images/colour.png')
    with pytest.raises(SystemExit) as exit_:
        tool(tmp_path, 'predict.py', config, checkpoint, 'parts/images', '--out', 'predicted')
    assert exit_.value.code == 1
    errors = tool.capsys.readouterr().err
    assert 'colour.png has 3 channels of uint8, expected 1 channel of uint16' in errors
    assert len(list((tmp_path / 'predicted/overlays').iterdir())) == 8
