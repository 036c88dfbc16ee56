"""tools/export.py: small models through mmdeploy and back, mmdeploy's own functions, and bad input."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from bioattn_mm import Predictor
from bioattn_mm.runtime import Model
from bioattn_mm.runtime.backends import BACKENDS

from ..needs import module_needs
from ..runtime.comparison import check_logits, few_images
from .random_weights import random_checkpoint
from .running import ROOT, InProcess, run

pytestmark = module_needs('mmdeploy', 'onnx', 'onnxruntime', 'openvino')

UPERNET, MASK_RCNN = (str(ROOT / f'tests/tools/{name}_small.py') for name in ('upernet', 'mask_rcnn'))
SEGMENTATION = 'configs/deploy/segmentation_onnxruntime_dynamic.py'


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:You are using the legacy TorchScript-based ONNX export')
@pytest.mark.parametrize(
    'config, kind, int8',
    [
        (UPERNET, 'segmentation', True),
        (MASK_RCNN, 'instance-seg', False),
        pytest.param(MASK_RCNN, 'instance-seg', True, marks=pytest.mark.every_config),
    ],
)
def test_exported_is_pytorchs(config: str, kind: str, int8: bool, workplace: Path, tool: InProcess) -> None:
    random_checkpoint(workplace / 'random.pth', config)
    out = workplace / 'exported' / kind
    printed = tool(
        workplace, 'export.py', config, 'random.pth', '--out', str(out), '--verify',
        '--deploy-cfg', f'configs/deploy/{kind}_onnxruntime_dynamic.py', '--mini', '--verify-images', '2',
        *(('--int8', few_images(workplace)) if int8 else ()),
        '--cfg-options', 'test_dataloader.dataset.indices=4',
    )  # fmt: skip

    assert '2 of 4 miniature images' in printed
    assert ('calibrate int8, 3 images' in printed) == int8 == (out / 'end2end_int8.onnx').is_file()
    assert float(re.search('largest difference of the outputs: (.*)', printed)[1]) < 1e-3

    (stripped,) = out.glob('*.pth')
    assert stripped.stem.split('-')[-1] == hashlib.sha256(stripped.read_bytes()).hexdigest()[:8]
    saved = torch.load(stripped)
    assert set(saved) == {'meta', 'state_dict'} and set(saved['meta']) == {'dataset_meta'}
    deploy, pipeline, detail = (json.loads((out / f'{n}.json').read_text()) for n in ('deploy', 'pipeline', 'detail'))
    assert deploy['models'][0]['net'] == 'end2end.onnx' and detail['codebase']['pth'].endswith(stripped.name)
    assert pipeline['pipeline']['tasks'][0]['transforms'][0]['type'] == 'LoadImageFromFile'

    # bioattn_mm.runtime predicts, by pipeline.json alone, what PyTorch predicts by the config.
    exported, paths = out / 'end2end.onnx', sorted((workplace / 'data/mini/coco/val2017').glob('*.jpg'))
    # Neither is padded, which an exported model takes for a part of the image.
    images = [cv2.resize(cv2.imread(str(path)), size) for path, size in zip(paths, ((256, 192), (420, 315)))]
    options = {}
    if config == MASK_RCNN:
        path = exported.with_name('pipeline.json')
        document = json.loads(path.read_text())
        document['preprocessing'][0]['scale'] = [256, 192]
        path.write_text(json.dumps(document))
        options = {f'model.test_cfg.{stage}.nms.split_thr': 1 for stage in ('rpn', 'rcnn')}
        options['test_dataloader.dataset.pipeline.1.scale'] = (256, 192)
    predictor = Predictor(config, workplace / 'random.pth', mini=True, device='cpu', cfg_options=options or None)
    samples = predictor(images, return_logits=True)
    for backend in BACKENDS:
        for sample, result in zip(samples, Model(exported, backend)(images, return_logits=True)):
            if config == UPERNET:
                check_logits(sample, result)
            else:
                expected = sample.pred_instances.numpy()
                assert len(result.scores) > 5 and (expected.labels == result.labels).all()
                np.testing.assert_allclose(result.scores, expected.scores, atol=1e-3)
                np.testing.assert_allclose(result.boxes, expected.bboxes, atol=0.01)
                assert (np.asarray(expected.masks) != result.masks).mean() < 1e-4
    shutil.rmtree(out)


@pytest.mark.slow
def test_mmdeploys_own_functions_at_any_size(workplace: Path) -> None:
    """In a process that imports nothing of this repository but the package."""
    random_checkpoint(workplace / 'random.pth', UPERNET)
    run(workplace, Path(__file__).with_name('mmdeploy_api.py'), UPERNET, SEGMENTATION, 'random.pth', 'api')


BAD_INPUT = {
    '--deploy-cfg none.py': 'deploy config not found: none.py',
    f'--deploy-cfg {UPERNET}': '.*upernet_small.py is no deploy config of mmdeploy: it has no ir_',
    f'--deploy-cfg {SEGMENTATION} --int8 none': 'no folder of images to calibrate on at non',
    f'--deploy-cfg {SEGMENTATION} --cfg-options test_dataloader.dataset.pipeline.1.type=RandomFlip': '.*RandomFlip',
    '--deploy-cfg configs/deploy/segmentation_torchscript.py --int8 data': '--int8 writes an ONNX file',
    '--deploy-cfg configs/deploy/segmentation_tensorrt-fp16_dynamic.py': '.* exports for tensorrt, which is not',
    '--to onnx': '--via mmdeploy takes --deploy-cfg FILE, and no --to, --size or --b',
}


@pytest.mark.parametrize(('options', 'message'), BAD_INPUT.items())
def test_bad_input(options: str, message: str, workplace: Path, tool: InProcess) -> None:
    random_checkpoint(workplace / 'random.pth', UPERNET)
    line = tool.refused(workplace, 'export.py', UPERNET, 'random.pth', '--mini', '--out', 'new', *options.split())
    assert re.match(f'error: {message}', line)


# Each system with the heads that it is exported with, the smallest model of each kind.
SYSTEMS = 'transnext/{}_micro convit/{}_tiny pervit/{}_tiny gab/{}_vit_small gab/{}_swin_small '
SYSTEMS += 'vars/{}_rvt_tiny_vars_d vars/{}_rvt_tiny_vars_sd'
EXPORTED = [
    *(f'{system.format("upernet")}_ade20k' for system in SYSTEMS.split()), 'transnext/mask2former_micro_ade20k',
    *(f'{system.format("mask_rcnn")}_coco' for system in SYSTEMS.split()), 'transnext/dino_4scale_micro_coco',
]  # fmt: skip
KINDS = dict(upernet='segmentation', mask2former='segmentation', mask_rcnn='instance-seg', dino='detection')


def config_of(name: str, workplace: Path) -> str:
    """A config by its name; with another attention of VARS, two lines, as docs/any_model.md has it."""
    configs = ROOT / 'configs'
    if (configs / f'{name}.py').exists():
        return f'{configs}/{name}.py'
    bases = [f'{configs}/{name.replace("vars_d", "vars_sd")}.py', f'{configs}/_base_/backbones/rvt_tiny_vars_d.py']
    (workplace / 'variant.py').write_text(f"_base_ = {bases}\nmodel = dict(backbone=_base_.pop('backbone'))\n")
    return str(workplace / 'variant.py')


@pytest.mark.every_config
@pytest.mark.filterwarnings('ignore:You are using the legacy TorchScript-based ONNX export')
@pytest.mark.parametrize('size', ['static', 'dynamic'])
@pytest.mark.parametrize('name', EXPORTED)
def test_every_system_and_head(name: str, size: str, workplace: Path, tool: InProcess, capsys) -> None:
    """A row of the table in docs/export.md, which `-s` prints."""
    (kind,) = (kind for head, kind in KINDS.items() if f'/{head}_' in name)
    config = config_of(name, workplace)
    random_checkpoint(workplace / 'random.pth', config)
    width_and_height = [192, 128] if kind == 'segmentation' else [288, 224]
    shape = f'ir_config = dict(dynamic_axes=None, input_shape={width_and_height})' if size == 'static' else ''
    deploy = workplace / 'deploy.py'
    deploy.write_text(f'_base_ = {str(ROOT / "configs/deploy" / f"{kind}_onnxruntime_dynamic.py")!r}\n{shape}\n')
    shutil.rmtree(workplace / 'exported', ignore_errors=True)
    printed = tool(
        workplace, 'export.py', config, 'random.pth', '--deploy-cfg', 'deploy.py', '--out', 'exported', '--verify',
        '--mini', '--cfg-options', 'test_dataloader.dataset.indices=4',
    )  # fmt: skip
    difference = re.search('largest difference of the outputs: (.*)', printed)[1]
    # An exported model of one size takes images of others.
    printed = tool(workplace, 'predict.py', 'exported/end2end.onnx', 'data/mini/coco/val2017/000000000001.jpg')
    assert printed.splitlines()[-1].startswith('1 image, ')
    with capsys.disabled():
        print(f'\n| {name} | {size} | {difference} |')
