"""Export a segmentor by mmdeploy's own functions, and compare the file with PyTorch at several sizes."""

import sys
from pathlib import Path

import numpy as np
import torch
from mmdeploy.apis import build_task_processor, inference_model, torch2onnx
from mmdeploy.utils import load_config
from mmengine.config import Config

import bioattn_mm  # noqa: F401

path, deploy_path, checkpoint, folder = sys.argv[1:]
config = Config.fromfile(path)
config.model.test_cfg = dict(mode='whole')
for height, width in ((224, 224), (384, 640), (200, 264)):
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    resize = next(step for step in config.test_pipeline if step['type'] == 'Resize')
    resize.update(scale=(width, height), keep_ratio=False)
    if height == 224:
        torch2onnx(image, folder, 'end2end.onnx', deploy_path, config, checkpoint, 'cpu')
    (exported,) = inference_model(config, deploy_path, [str(Path(folder) / 'end2end.onnx')], image, 'cpu')
    deploy_config, model_config = load_config(deploy_path, config)
    task = build_task_processor(model_config, deploy_config, 'cpu')
    with torch.no_grad():
        (eager,) = task.build_pytorch_model(checkpoint).test_step(task.create_input(image)[0])
    found, expected = (sample.seg_logits.data for sample in (exported, eager))
    assert found.shape == (150, height, width)
    assert (found - expected).abs().max() < 1e-3 * min(1, expected.std())
    assert (exported.pred_sem_seg.data == eager.pred_sem_seg.data).float().mean() > 0.999
