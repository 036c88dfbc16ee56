"""tools/convert_checkpoint.py: files as the authors' frameworks wrote them, and others; tools/publish_model.py."""

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from mmcv.cnn.bricks.transformer import BaseTransformerLayer
from mmdet.models.layers.transformer.mask2former_layers import Mask2FormerTransformerDecoderLayer
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmseg.structures import SegDataSample
from safetensors import safe_open
from torch.distributed import checkpoint as dcp

from bioattn_mm.checkpoints import check_fit, read_checkpoint, read_state_dict
from bioattn_mm.checkpoints.downstream import convert
from bioattn_mm.checkpoints.sharded import split
from bioattn_mm.systems.transnext import TransNeXt
from bioattn_mm.training.config.model_check import model_of

from .. import parity
from .random_weights import random_checkpoint
from .running import ROOT, InProcess

TOOL = 'convert_checkpoint.py'
UPERNET = str(ROOT / 'tests/tools/upernet_small.py')
Shapes = dict[str, tuple[int, ...]]

# What mmcv 1 saves beside parameters, and mmengine does.
TABLES = {f'backbone.relative_{name}{i}': (4,) for i in (1, 2, 3, 4) for name in ('pos_index', 'coords_table')}
PREPROCESSOR = {'data_preprocessor.mean': (3, 1, 1), 'data_preprocessor.std': (3, 1, 1)}

MMCV_META = {'CLASSES': ('wall', 'building'), 'PALETTE': [[120, 120, 120], [180, 120, 120]], 'config': 'model = ...'}
MMENGINE_META = {'dataset_meta': {'CLASSES': ('person', 'bicycle'), 'palette': [(1, 2, 3)]}, 'epoch': 12}
# By config: what the tool calls it, the key of the recorded heads, what is saved beside parameters, height and width
# of the recorded prediction's image, which gives DINO no fewer positions than queries.
FRAMEWORKS = {
    'mask_rcnn_tiny_coco': ('Mask R-CNN', 'mask_rcnn', TABLES, MMCV_META, (128, 160)),
    'dino_4scale_tiny_coco': ('DINO', 'dino_4scale', PREPROCESSOR, MMENGINE_META, (224, 256)),
    'dino_5scale_tiny_coco': ('DINO', 'dino_5scale', PREPROCESSOR, MMENGINE_META, (128, 160)),
    'upernet_tiny_ade20k': ('UperNet', 'upernet', TABLES, MMCV_META, (128, 160)),
    'mask2former_tiny_ade20k': ('Mask2Former', 'mask2former', PREPROCESSOR, MMENGINE_META, (128, 160)),
}


def backbone(variant: str) -> Shapes:
    shapes = json.loads((parity.FOLDER / f'manifest_transnext_{variant}.json').read_text())
    return {f'backbone.{name}': tuple(shape) for name, shape in shapes.items()}


def on_meta(shapes: Shapes) -> dict[str, torch.Tensor]:
    return {name: torch.empty(shape, device='meta') for name, shape in shapes.items()}


def save(path: Path, shapes: Shapes, meta: dict | None = None, **entries: object) -> dict[str, torch.Tensor]:
    """Write a file like one that was trained, with the values of the recorded predictions."""
    state_dict = {name: parity.fill_value(name, shape) for name, shape in shapes.items()}
    torch.save({'meta': meta or {}, 'state_dict': state_dict, **entries}, path)
    return state_dict


def some(names: Iterable[str], *chosen: str) -> list:
    """The names as parameters of a test that `make test` runs with the chosen ones, `make test-all` with all."""
    return [pytest.param(name, marks=() if name in chosen else pytest.mark.every_config) for name in names]


@pytest.mark.parametrize('name', some(FRAMEWORKS, 'mask_rcnn_tiny_coco', 'mask2former_tiny_ade20k'))
def test_converted_file_predicts_what_the_authors_library_does(name: str, tmp_path: Path, tool: InProcess) -> None:
    framework, key, buffers, meta, size = FRAMEWORKS[name]
    heads = parity.released_heads(key, 'tiny')
    released = save(tmp_path / 'released.pth', backbone('tiny') | heads | buffers, meta, optimizer={'state': {}})
    config = ROOT / f'configs/transnext/{name}.py'
    printed = tool(tmp_path, TOOL, 'released.pth', 'converted.pth', '--config', config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['converted.pth', 'released.pth']

    num_neck = sum(head.startswith('neck.') for head in heads)
    assert f'{framework} with TransNeXt-Tiny' in printed
    assert f'mapped: {len(backbone("tiny"))} backbone, {num_neck} neck, {len(heads) - num_neck} heads' in printed
    assert f'left out: {len(buffers)} {next(iter(buffers))}, ' in printed
    dataset_meta = torch.load('converted.pth')['meta']['dataset_meta']
    assert dataset_meta['classes'] == (meta.get('CLASSES') or meta['dataset_meta']['CLASSES'])
    assert set(dataset_meta) == {'classes', 'palette'}

    config = Config.fromfile(config)
    config.model.backbone.update(img_size=224, init_cfg=None)
    if framework == 'Mask R-CNN':  # random weights: low scores, and fewer regions than a test takes
        config.model.test_cfg.rpn.max_per_img = 100
        config.model.test_cfg.rcnn.update(score_thr=0.0, max_per_img=20)
    # As tools/test.py compares, and torch itself.
    weights = read_state_dict(str(tmp_path / 'converted.pth'))
    model = model_of(config)
    check_fit('converted.pth', weights, model.state_dict(), strict=True)
    model.load_state_dict(weights, strict=True, assign=True)
    assert all(torch.equal(weights[head], released[head]) for head in heads)

    recorded = np.load(parity.FOLDER / f'whole_{key}_tiny.npz')
    for quantity, value in prediction(model.double().eval(), size).items():
        assert parity.relative_error(value, recorded[quantity]) < 1e-6, quantity


@torch.no_grad()
def prediction(model: torch.nn.Module, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """What is recorded of a whole model's prediction for `parity.image`, normalised and padded already.

    Of Mask R-CNN the masks are those in their boxes: mmdet pastes them into the image in float32 alone.
    """
    image = parity.image(1, *size).double()
    shapes = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape'), size)
    meta = dict(**shapes, scale_factor=(1.0, 1.0))
    if not hasattr(model, 'bbox_head') and not hasattr(model, 'roi_head'):
        (sample,) = model.predict(image, [SegDataSample(metainfo=meta)])
        return dict(logits=sample.seg_logits.data[None, ::10, ::8, ::8].float().numpy())
    masks = []
    if hasattr(model, 'roi_head'):
        head = model.roi_head.mask_head
        head.predict_by_feat = lambda mask_preds, results_list, **_: masks.extend(mask_preds) or results_list
    (sample,) = model.predict(image, [DetDataSample(metainfo=meta)], rescale=False)
    best = sample.pred_instances[:100]
    predicted = dict(boxes=best.bboxes.numpy(), scores=best.scores.numpy(), labels=best.labels.numpy())
    if masks:
        predicted['masks'] = masks[0][range(len(best)), best.labels][:, ::9, ::9].float().numpy()
    return predicted


RELEASED = {
    f'{head}_{variant}_{data}': (variant, head)
    for variant in ('tiny', 'small', 'base')
    for head, data in dict(mask_rcnn='coco', dino_5scale='coco', upernet='ade20k', mask2former='ade20k').items()
} | {
    'dino_4scale_tiny_coco': ('tiny', 'dino_4scale'),
    'mask2former_micro_ade20k': ('micro', 'mask2former_numbered'),  # numbered layers of an older Mask2Former
}


@pytest.mark.parametrize(
    'name', some(RELEASED, 'dino_5scale_tiny_coco', 'upernet_base_ade20k', 'mask2former_micro_ade20k')
)
def test_every_file_of_the_release_fits_its_config(name: str) -> None:
    """Names and shapes alone."""
    variant, key = RELEASED[name]
    released = on_meta(backbone(variant) | parity.released_heads(key, variant) | TABLES | PREPROCESSOR)
    conversion = convert('released.pth', released, TransNeXt)
    assert conversion.variant == variant
    own = model_of(Config.fromfile(ROOT / f'configs/transnext/{name}.py')).state_dict()
    check_fit('released.pth', conversion.weights, own, strict=True)


@torch.no_grad()
def test_numbered_layers_compute_the_same() -> None:
    """The layer that mmdet 2 builds Mask2Former from is still in mmcv."""
    attention, ffn = dict(embed_dims=256, num_heads=8), dict(embed_dims=256, feedforward_channels=64, num_fcs=2)
    older = BaseTransformerLayer(
        attn_cfgs=dict(type='MultiheadAttention', **attention),
        ffn_cfgs=dict(type='FFN', **ffn),
        operation_order=('cross_attn', 'norm', 'self_attn', 'norm', 'ffn', 'norm'),
        batch_first=True,
    ).eval()
    attention['batch_first'] = True
    today = Mask2FormerTransformerDecoderLayer(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=ffn).eval()
    for parameter in older.parameters():
        parameter.normal_(std=0.1)

    # The layer as a part of a whole file.
    prefix = 'decode_head.transformer_decoder.layers.3.'
    file = on_meta(backbone('micro')) | {f'{prefix}{name}': value for name, value in older.state_dict().items()}
    weights = convert('x.pth', file, TransNeXt).weights
    converted = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    today.load_state_dict(converted, strict=True)
    inputs = dict(query=torch.rand(2, 5, 256), key=torch.rand(2, 7, 256), value=torch.rand(2, 7, 256))
    assert torch.equal(older(**inputs), today(**inputs))


def test_averaged_weights_and_wrappers(tmp_path: Path, tool: InProcess) -> None:
    """A parallel wrapper's prefix, mmcv's and mmengine's second sets of weights."""
    released = backbone('micro') | parity.released_heads('upernet', 'micro') | {'ema_backbone_norm1_weight': (48,)}
    shapes = {f'module.{name}': shape for name, shape in released.items()}
    save(tmp_path / 'released.pth', shapes, ema_state_dict={'steps': torch.zeros(())}, message_hub={})
    out = tool(tmp_path, TOOL, 'released.pth', 'converted.pth')
    assert 'left out: 1 ema_backbone_norm1_weight' in out
    assert 'not compared with a model' in out
    assert len(read_state_dict(str(tmp_path / 'converted.pth'))) == len(shapes) - 1


# A backbone of one value for each parameter: names are compared before shapes.
NAMES = dict.fromkeys(backbone('micro'), ())
HEAD = dict.fromkeys(parity.released_heads('upernet', 'micro'), ())
RESNET = dict.fromkeys(['backbone.conv1.weight', 'backbone.bn1.weight'], (8,))
OWN_NAMES = dict.fromkeys(['backbone.stages.0.patch_embed.proj.weight', 'decode_head.conv_seg.bias'], (8,))
REFUSED = {
    r'x.pth has 3 entries of \d+ that are neither of TransNeXt nor .*: backbone.block1.0.attn.gate, deco': (
        NAMES | HEAD | {'backbone.block1.0.attn.gate': (1,), 'decode_head.depth.weight': (1,), 'steps': (1,)}
    ),
    r'x.pth has 2 entries of \d+ .* name them: backbone.conv1.weight, backbone.bn1.weight$': RESNET | HEAD,
    'x.pth has 1 entries .* name them: rpn_head.rpn_conv.bias$': NAMES | HEAD | {'rpn_head.rpn_conv.bias': (256,)},
    r'x.pth .its backbone taken as TransNeXt-Micro. is not .*; \d+ missing in the file: stages.2.blocks.1.': (
        {name: shape for name, shape in (backbone('micro') | HEAD).items() if 'block3.1' not in name}
    ),
    r"x.pth is a backbone alone, .*: nothing to convert, init_cfg=dict\(type='Pretrained', checkpoint='x.pth'\)": (
        {name.removeprefix('backbone.'): () for name in NAMES} | {'head.weight': (1000, 384)}
    ),
    'x.pth has a backbone and no head: ': backbone('micro'),
    'x.pth has the names of this package already: nothing to convert$': OWN_NAMES,
}


@pytest.mark.parametrize(('message', 'shapes'), REFUSED.items(), ids=REFUSED)
def test_refuses_other_files(message: str, shapes: Shapes, tmp_path: Path, tool: InProcess) -> None:
    torch.save({'state_dict': {name: torch.zeros(shape) for name, shape in shapes.items()}}, tmp_path / 'x.pth')
    assert re.match(f'error: {message}', tool.refused(tmp_path, TOOL, 'x.pth', 'out.pth'))


def test_refuses_paths_and_the_config_of_another_model(tmp_path: Path, tool: InProcess) -> None:
    (tmp_path / 'there.pth').touch()
    assert tool.refused(tmp_path, TOOL, 'x.pth', 'there.pth').startswith('error: there.pth is there already')
    assert tool.refused(tmp_path, TOOL, 'x.pth', 'none/out.pth') == 'error: no such folder: none'
    shapes = backbone('micro') | parity.released_heads('upernet', 'micro')
    torch.save({name: torch.zeros(()).expand(shape) for name, shape in shapes.items()}, tmp_path / 'x.pth')
    config = ROOT / 'configs/transnext/mask2former_micro_ade20k.py'
    got = tool.refused(tmp_path, TOOL, 'x.pth', 'out.pth', '--config', str(config))
    assert re.match(r'error: x.pth .for .*k.py. is not a .*; \d+ missing in the file: decode_head.pixel_decoder', got)


def test_weights_of_a_file_and_of_a_folder_are_published(workplace: Path, tmp_path: Path, tool: InProcess) -> None:
    """The folder is that of a training with FSDP."""
    random_checkpoint(tmp_path / 'file.pth', UPERNET)
    expected = torch.load(tmp_path / 'file.pth', weights_only=False)
    tensors, rest = split(torch.load(tmp_path / 'file.pth', weights_only=False))
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(tmp_path / 'folder.pth'), no_dist=True)
    torch.save(rest, tmp_path / 'folder.pth/rest.pth')
    for name, suffix in itertools.product(('file', 'folder'), ('pth', 'safetensors')):
        published = f'published_{name}.{suffix}'
        printed = tool(tmp_path, 'publish_model.py', f'{name}.pth', published)
        assert printed.startswith(f'{len(expected["state_dict"])} tensors, ')
        weights = read_state_dict(published)
        assert weights.keys() == expected['state_dict'].keys()
        assert all(torch.equal(weights[key], value) for key, value in expected['state_dict'].items())
        if suffix == 'pth':
            checkpoint = read_checkpoint(published)
            assert checkpoint.keys() == {'meta', 'state_dict'}
            assert checkpoint['meta'] == dict(dataset_meta=expected['meta']['dataset_meta'])
        else:
            with safe_open(published, 'pt') as file:
                assert file.metadata() == dict(format='pt')

    (tmp_path / 'data').symlink_to(workplace / 'data')
    for call, message in {
        f'train.py {UPERNET} --mini --work-dir none --resume folder.pth': 'folder.pth holds weights but no state',
        'publish_model.py folder.pth file.pth': 'file.pth is there already: ',
        'publish_model.py folder.pth weights.onnx': 'OUT must end with .safetensors or .pth, got weights.onnx',
    }.items():
        assert tool.refused(tmp_path, *call.split()).startswith(f'error: {message}')
