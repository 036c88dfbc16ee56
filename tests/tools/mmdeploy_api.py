"""mmdeploy's own functions on a config of this repository, with nothing of it imported but the package.

Usage: mmdeploy_api.py CONFIG DEPLOY_CONFIG CHECKPOINT FOLDER HEIGHTxWIDTH ...: exports at the first size, and writes
to FOLDER/differences.json how onnxruntime and PyTorch differ at all of them.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from mmdeploy.apis import build_task_processor, inference_model, torch2onnx
from mmdeploy.utils import load_config
from mmengine.config import Config

import bioattn_mm  # noqa: F401


def main() -> None:
    path, deploy_path, checkpoint, folder, *sizes = sys.argv[1:]
    config = Config.fromfile(path)
    config.model.test_cfg = dict(mode='whole')
    results = {}
    for size in sizes:
        height, width = (int(length) for length in size.split('x'))
        image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        resize = next(step for step in config.test_pipeline if step['type'] == 'Resize')
        resize.update(scale=(width, height), keep_ratio=False)
        if size == sizes[0]:
            torch2onnx(image, folder, 'end2end.onnx', deploy_path, config, checkpoint, 'cpu')
        file = str(Path(folder) / 'end2end.onnx')
        (exported,) = inference_model(config, deploy_path, [file], image, 'cpu')

        deploy_config, model_config = load_config(deploy_path, config)
        task = build_task_processor(model_config, deploy_config, 'cpu')
        with torch.no_grad():
            (eager,) = task.build_pytorch_model(checkpoint).test_step(task.create_input(image)[0])
        difference = (exported.seg_logits.data - eager.seg_logits.data).abs().max()
        same = (exported.pred_sem_seg.data == eager.pred_sem_seg.data).float().mean()
        results[size] = dict(
            shape=list(exported.seg_logits.data.shape),
            difference=float(difference),
            scale=float(eager.seg_logits.data.std()),
            same=float(same),
        )
    (Path(folder) / 'differences.json').write_text(json.dumps(results))


if __name__ == '__main__':
    main()
