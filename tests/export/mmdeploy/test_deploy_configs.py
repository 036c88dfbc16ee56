"""The deploy configs, as mmdeploy reads them."""

import re
from pathlib import Path

import pytest
from mmengine.config import Config

from tests.needs import module_needs

pytestmark = module_needs('mmdeploy')

from mmdeploy.utils import (  # noqa: E402
    get_backend,
    get_codebase,
    get_common_config,
    get_input_shape,
    get_ir_config,
    get_model_inputs,
    get_task_type,
    is_dynamic_shape,
)
from mmdeploy.utils.config_utils import get_codebase_external_module  # noqa: E402

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
    found = {re.sub('(static|dynamic)-.*', r'\1', name) for name in NAMES}
    assert found == {f'{task}_{kind}' for task in OUTPUTS for kind in kinds} and len(found) == len(NAMES)


@pytest.mark.parametrize('name', NAMES)
def test_says_what_its_name_says(name: str) -> None:
    config = Config.fromfile(FOLDER / f'{name}.py')
    task, runtime, *_ = name.split('_')
    ir = get_ir_config(config)
    assert ir.output_names == OUTPUTS[task]
    assert get_backend(config).value == runtime.split('-')[0]
    assert get_codebase(config).value == ('mmseg' if task == 'segmentation' else 'mmdet')
    assert get_task_type(config).value == ('Segmentation' if task == 'segmentation' else 'ObjectDetection')
    # Without it mmdeploy knows nothing of this package.
    assert get_codebase_external_module(config) == ['bioattn_mm.export.mmdeploy']
    assert ir.type == ('torchscript' if runtime == 'torchscript' else 'onnx')
    (fixed,) = [*re.findall(r'static-(\d+)x(\d+)', name), None][:1]
    assert get_input_shape(config) == (fixed and [int(length) for length in reversed(fixed)])
    assert is_dynamic_shape(config) == (fixed is None)
    if runtime == 'tensorrt-fp16':
        assert get_common_config(config).fp16_mode
        (inputs,) = get_model_inputs(config)
        shapes = inputs.input_shapes.input
        for smallest, usual, largest in zip(shapes.min_shape, shapes.opt_shape, shapes.max_shape):
            assert smallest <= usual <= largest
