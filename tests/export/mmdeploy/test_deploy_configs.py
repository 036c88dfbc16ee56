"""The deploy configs, by the entries that mmdeploy reads."""

import re
from pathlib import Path

import pytest
from mmengine.config import Config

FOLDER = Path(__file__).parents[3] / 'configs/deploy'
# What comes out for each task.
OUTPUTS = {
    'segmentation': ['output'],
    'detection': ['dets', 'labels'],
    'instance-seg': ['dets', 'labels', 'masks'],
    'panoptic-seg': ['cls_logits', 'mask_logits'],
}
NAMES = sorted(path.stem for path in FOLDER.glob('*.py'))


def test_every_task_has_every_runtime() -> None:
    kinds = ('onnxruntime_dynamic', 'onnxruntime_static', 'tensorrt-fp16_dynamic', 'torchscript')
    found = [re.sub('static-.*', 'static', name) for name in NAMES]
    assert sorted(found) == sorted(f'{task}_{kind}' for task in OUTPUTS for kind in kinds)


@pytest.mark.parametrize('name', NAMES)
def test_says_what_its_name_says(name: str) -> None:
    config = Config.fromfile(FOLDER / f'{name}.py')
    task, runtime, *_ = name.split('_')
    backend, ir, codebase = config.backend_config, config.ir_config, config.codebase_config
    assert ir.output_names == OUTPUTS[task] and backend.type == runtime.split('-')[0]
    library = ('mmseg', 'Segmentation') if task == 'segmentation' else ('mmdet', 'ObjectDetection')
    assert (codebase.type, codebase.task) == library
    # Without it mmdeploy knows nothing of this package.
    assert codebase.module == ['bioattn_mm.export.mmdeploy']
    assert ir.type == ('torchscript' if runtime == 'torchscript' else 'onnx')
    fixed = re.search(r'static-(\d+)x(\d+)', name)
    assert ir.input_shape == (fixed and [int(fixed[2]), int(fixed[1])])  # width, height
    if ir.type == 'onnx':
        assert (ir.dynamic_axes or dict(input=None))['input'] == (None if fixed else {2: 'height', 3: 'width'})
    if runtime == 'tensorrt-fp16':
        assert backend.common_config.fp16_mode
        shapes = backend.model_inputs[0].input_shapes.input
        for lengths in zip(shapes.min_shape, shapes.opt_shape, shapes.max_shape):
            assert list(lengths) == sorted(lengths)
