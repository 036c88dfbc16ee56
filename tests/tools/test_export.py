"""tools/export.py: files of small models beside PyTorch, through torch.export and mmdeploy, and what is refused."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from mmengine.registry import TRANSFORMS

from bioattn_mm import Predictor
from bioattn_mm.export.formats import FOR_ONNX
from bioattn_mm.export.pipeline import preprocessing_of
from bioattn_mm.export.program import adaptive_average
from bioattn_mm.ops.portable import portable_formulas
from bioattn_mm.runtime import Model
from bioattn_mm.runtime.backends import BACKENDS
from bioattn_mm.runtime.preprocessing import prepare
from bioattn_mm.systems.gab.vit_attention import GaussianRelPosAttention
from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention
from bioattn_mm.systems.transnext import AggregatedAttention, ConvGLU, LengthScaledAttention, LogCPB
from bioattn_mm.training.config.pipelines import LOAD_CHANNELS

from ..needs import needs
from ..runtime.comparison import check_logits, few_images, image_of
from .random_weights import random_checkpoint
from .running import ROOT, InProcess

UPERNET, MASK_RCNN, PANOPTIC = (
    str(ROOT / f'tests/tools/{name}_small.py') for name in ('upernet', 'mask_rcnn', 'mask2former_panoptic')
)
SEGMENTATION = 'configs/deploy/segmentation_onnxruntime_dynamic.py'
ONNX, MMDEPLOY = needs(*FOR_ONNX), needs('mmdeploy', 'onnx', 'onnxruntime', 'openvino')
LEGACY = pytest.mark.filterwarnings('ignore:You are using the legacy TorchScript-based ONNX export')
CALL = ('export.py', '--via', 'torch', '--mini', UPERNET)
CLASSES = ('screw', 'nut', 'washer')
SIZE = (64, 96)


def test_portable_formulas_are_the_operators() -> None:
    def bias(ratio: int) -> LogCPB:
        return LogCPB(2, (7, 7), 'extrapolate', (6, 6), (6 // ratio, 6 // ratio))

    distances, peripheral = DistanceEmbedding(2), PeripheralAttention(16, 2)
    layers = (
        AggregatedAttention(16, 2, bias(2), 2),
        AggregatedAttention(16, 2, bias(2), 3, window_size=5),
        LengthScaledAttention(16, 2, bias(1)),
        ConvGLU(48, 2),
        GaussianRelPosAttention(16, 2, sigma=1.5).eval(),
        lambda x: peripheral(x, distances),
    )
    with torch.no_grad():
        for layer in layers:
            x = torch.randn(2, 5, 8, 48 if isinstance(layer, ConvGLU) else 16)
            expected = layer(x)
            with portable_formulas(), torch.profiler.profile() as run:
                torch.testing.assert_close(layer(x), expected, atol=2e-5, rtol=1e-4)
            assert not [event.name for event in run.events() if event.name.startswith('bioattn_mm::')]


@pytest.mark.parametrize('target', [1, (3, 5), (4, None), 9])
def test_adaptive_average(target: object) -> None:
    x = torch.randn(2, 3, 8, 10)
    torch.testing.assert_close(adaptive_average(x, target), F.adaptive_avg_pool2d(x, target))


@pytest.mark.parametrize('config', ['convit/convit-tiny_8xb128_in1k', 'transnext/upernet_tiny_ade20k'])
def test_pipeline_is_that_of_the_config(config: str) -> None:
    """Resizing as the test pipeline does, by Pillow for ImageNet and OpenCV for ADE20K."""
    config = Config.fromfile(ROOT / f'configs/{config}.py')
    steps = preprocessing_of(config)[:-1]
    image = image_of(300, 401)
    expected = dict(img=image, img_shape=image.shape[:2])
    with TRANSFORMS.switch_scope_and_registry(config.default_scope) as registry:
        for transform in config.test_dataloader.dataset.pipeline:
            if transform['type'] in ('Resize', 'ResizeEdge', 'CenterCrop'):
                expected = registry.build(transform)(expected)
    assert (prepare(image, steps).inputs == expected['img'].transpose(2, 0, 1)).all()
    assert steps[0]['backend'] == ('pillow' if config.default_scope == 'mmpretrain' else 'cv2')
    # Other channels stay in the order in which they are read.
    config.test_dataloader.dataset.pipeline[0] = ConfigDict(type=LOAD_CHANNELS, channels=4, dtype='uint16')
    read, *others, normalize = preprocessing_of(config)
    assert read == dict(type='read', channels=4, dtype='uint16')
    assert others == steps and normalize['channels'] == 'as read'


@pytest.mark.slow
@ONNX
def test_onnx_of_one_size(workplace: Path, tool: InProcess) -> None:
    import onnx

    out, checkpoint = workplace / 'exported_by_torch', workplace / 'own_classes.pth'
    random_checkpoint(checkpoint, UPERNET, CLASSES)  # which the config does not know
    size = 'x'.join(map(str, SIZE))
    call = (*CALL, checkpoint, '--to', 'onnx', '--size', size, '--out', out, '--int8', few_images(workplace))
    printed = tool(workplace, *call)
    names = ('end2end.onnx', 'end2end_int8.onnx', 'pipeline.json')
    assert all(f'{name}  ' in printed for name in names) and {path.name for path in out.iterdir()} == set(names)
    pipeline = json.loads((out / 'pipeline.json').read_text())
    assert pipeline['classes'] == list(CLASSES) and len(pipeline['palette']) == 3
    assert [step['type'] for step in pipeline['preprocessing']] == ['resize', 'normalize']
    assert pipeline['postprocessing']['mode'] == 'slide'
    assert pipeline['inputs'][0]['shape'] == [1, 3, *SIZE]

    assert {node.domain for node in onnx.load(out / names[0]).graph.node} <= {'', 'ai.onnx'}
    image = torch.randn(1, 3, *SIZE)
    model = Predictor(UPERNET, checkpoint, mini=True, device='cpu').model
    with torch.no_grad():
        expected = model.decode_head(model.extract_feat(image)).numpy()
    assert expected.shape[1] == 3 and expected.std() > 1e-3
    output, smaller = (Model(out / name).run(image.numpy())['logits'] for name in names[:2])
    np.testing.assert_allclose(output, expected, atol=1e-4, rtol=1e-3)
    assert 0 < np.abs(smaller - expected).max() < 0.3 * np.abs(expected).max()
    # The runtime slides windows of the file's size, at distances in proportion to the config's 85 of 128 pixels.
    windows = {'model.test_cfg.crop_size': SIZE, 'model.test_cfg.stride': (42, 63)}
    check_runtime(out, checkpoint, [image_of(128, 171), image_of(300, 200)], cfg_options=windows)


def check_runtime(out: Path, checkpoint: Path, images: list[np.ndarray], **options: object) -> None:
    """bioattn_mm.runtime predicts, by pipeline.json alone, what PyTorch predicts by the config."""
    results = Model(out / 'end2end.onnx')(images, return_logits=True)
    samples = Predictor(UPERNET, checkpoint, mini=True, device='cpu', **options)(images, return_logits=True)
    for sample, result in zip(samples, results, strict=True):
        check_logits(sample, result)


@ONNX
@pytest.mark.every_config
def test_onnx_of_any_size(workplace: Path, tool: InProcess) -> None:
    out, checkpoint = workplace / 'exported_of_any_size', workplace / 'torch_any_size.pth'
    random_checkpoint(checkpoint, UPERNET)
    call = (*CALL, checkpoint, '--to', 'onnx', '--out', out, '--int8', few_images(workplace))
    printed = tool(workplace, *call, '--verify', '--verify-images', 2)
    assert float(re.search('largest difference of the outputs: (.*)', printed)[1]) < 1e-4
    check_runtime(out, checkpoint, [image_of(128, 171), image_of(300, 200)])  # no window of these is padded


@MMDEPLOY
@LEGACY
@pytest.mark.slow
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


# By options; those of mmdeploy have no `--via torch`.
REFUSED = {
    '--to onnx': '--via mmdeploy takes --deploy-cfg FILE, and no --to, --size or --b',
    '--deploy-cfg none.py': 'deploy config not found: none.py',
    f'--deploy-cfg {UPERNET}': '.*upernet_small.py is no deploy config of mmdeploy: it has no ir_',
    f'--deploy-cfg {SEGMENTATION} --int8 none': 'no folder of images to calibrate on at non',
    f'--deploy-cfg {SEGMENTATION} --cfg-options test_dataloader.dataset.pipeline.1.type=RandomFlip': '.*RandomFlip',
    '--deploy-cfg configs/deploy/segmentation_torchscript.py --int8 data': '--int8 writes an ONNX file',
    '--deploy-cfg configs/deploy/segmentation_tensorrt-fp16_dynamic.py': '.* exports for tensorrt, which is not',
    '--deploy-cfg configs/deploy/instance-seg_onnxruntime_dynamic.py': '.*panoptic.*take one of .*panoptic-seg_',
    '--via torch': '--via torch takes --to FORMAT, --size and --backbone, and no --deploy-cfg',
    '--via torch --to pt2 --int8 data': '--int8 writes an ONNX file: take --to onnx',
    '--via torch --to onnx --int8 data --backbone': '--int8 is for whole models: calibrate without --backbone',
    '--via torch --to pt2 --verify': '--verify takes miniature images with the 150 classes of ',
    '--via torch --to pt2 --verify --backbone': '--via torch --verify is for segmentors; every file is compared',
    '--via torch --to pt2 --size 64': '.*expected HEIGHTxWIDTH of at least 32 pixels, such as',
    '--via torch --to pt2 --out data': 'data is there already and not empty: name another folder',
    '--via torch --to pt2 --size 64x64': 'MaskRCNN: --via torch exports classifiers, segmentors and backbones',
}


@pytest.mark.parametrize(
    'options', [pytest.param(options, marks=() if '--via torch' in options else MMDEPLOY) for options in REFUSED]
)
def test_refused(options: str, workplace: Path, tool: InProcess) -> None:
    message = REFUSED[options]
    config = MASK_RCNN if 'MaskRCNN' in message else PANOPTIC if 'panoptic' in message else UPERNET
    random_checkpoint(workplace / 'random.pth', config, CLASSES)
    line = tool.refused(workplace, 'export.py', config, 'random.pth', '--mini', '--out', 'new', *options.split())
    assert re.match(f'(export.py: )?error: {message}', line)


# Each system with the heads that it is exported with, the smallest model of each kind.
SYSTEMS = (
    'transnext/{}_micro convit/{}_tiny pervit/{}_tiny gab/{}_vit_small gab/{}_swin_small vars/{}_rvt_tiny_vars_sd'
)
EXPORTED = [
    *(f'{system.format("upernet")}_ade20k' for system in SYSTEMS.split()), 'transnext/mask2former_micro_ade20k',
    *(f'{system.format("mask_rcnn")}_coco' for system in SYSTEMS.split()), 'transnext/dino_4scale_micro_coco',
    'transnext/mask2former_micro_coco_panoptic',
]  # fmt: skip
KINDS = dict(panoptic='panoptic-seg', ade20k='segmentation', mask_rcnn='instance-seg', dino='detection')


@MMDEPLOY
@LEGACY
@pytest.mark.every_config
@pytest.mark.parametrize('size', ['static', 'dynamic'])
@pytest.mark.parametrize('name', EXPORTED)
def test_every_system_and_head(name: str, size: str, workplace: Path, tool: InProcess, capsys) -> None:
    """A row of the table in docs/export.md, which `-s` prints."""
    (kind,) = (kind for part, kind in KINDS.items() if part in name)
    config = str(ROOT / f'configs/{name}.py')
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
    if kind != 'panoptic-seg':  # An exported model of one size takes images of others.
        printed = tool(workplace, 'predict.py', 'exported/end2end.onnx', 'data/mini/coco/val2017/000000000001.jpg')
        assert printed.splitlines()[-1].startswith('1 image, ')
    with capsys.disabled():
        print(f'\n| {name} | {size} | {difference} |')
