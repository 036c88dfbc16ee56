"""tools/convert_checkpoint.py: files laid out as the authors' frameworks wrote them, and files that are none."""

import json
import re
from pathlib import Path

import pytest
import torch
from mmcv.cnn.bricks.transformer import BaseTransformerLayer
from mmdet.models.layers.transformer import DeformableDetrTransformerEncoderLayer
from mmdet.models.layers.transformer.mask2former_layers import Mask2FormerTransformerDecoderLayer
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from bioattn_mm.checkpoints import check_fit, read_state_dict
from bioattn_mm.checkpoints.downstream import convert
from bioattn_mm.models import TransNeXt

from .. import parity
from .running import ROOT, InProcess, run

TOOL = 'convert_checkpoint.py'
CHANNELS = {variant: settings['embed_dims'] for variant, settings in TransNeXt.arch_settings.items()}
Shapes = dict[str, tuple[int, ...]]

# The names and shapes of the authors' files, written down from mmdet 2.28 and 3.0 and mmseg 0.30 and 1.0.


def conv(name: str, out: int, channels: int, kernel: int, bias: bool = True) -> Shapes:
    return {f'{name}.weight': (out, channels, kernel, kernel)} | ({f'{name}.bias': (out,)} if bias else {})


def linear(name: str, out: int, channels: int) -> Shapes:
    return {f'{name}.weight': (out, channels), f'{name}.bias': (out,)}


def norm(name: str, channels: int) -> Shapes:
    return {f'{name}.weight': (channels,), f'{name}.bias': (channels,)}


def conv_gn(name: str, out: int, channels: int, kernel: int, bias: bool = False) -> Shapes:
    return conv(f'{name}.conv', out, channels, kernel, bias) | norm(f'{name}.gn', out)


def conv_bn(name: str, out: int, channels: int, kernel: int) -> Shapes:
    statistics = {f'{name}.bn.running_mean': (out,), f'{name}.bn.running_var': (out,)}
    batch_norm = norm(f'{name}.bn', out) | statistics | {f'{name}.bn.num_batches_tracked': ()}
    return conv(f'{name}.conv', out, channels, kernel, bias=False) | batch_norm


def attention(name: str) -> Shapes:
    shapes = {f'{name}.attn.in_proj_weight': (768, 256), f'{name}.attn.in_proj_bias': (768,)}
    return shapes | linear(f'{name}.attn.out_proj', 256, 256)


def deformable(name: str, levels: int) -> Shapes:
    points = 8 * levels * 4
    shapes = linear(f'{name}.sampling_offsets', 2 * points, 256) | linear(f'{name}.attention_weights', points, 256)
    return shapes | linear(f'{name}.value_proj', 256, 256) | linear(f'{name}.output_proj', 256, 256)


def ffn(name: str, hidden: int) -> Shapes:
    return linear(f'{name}.layers.0.0', hidden, 256) | linear(f'{name}.layers.1', 256, hidden)


def norms(name: str, number: int) -> Shapes:
    return merge(norm(f'{name}.norms.{index}', 256) for index in range(number))


def merge(parts) -> Shapes:
    return {name: shape for part in parts for name, shape in part.items()}


def mask_rcnn(channels: tuple[int, ...]) -> Shapes:
    return merge(
        [
            *[conv(f'neck.lateral_convs.{i}.conv', 256, channels[i], 1) for i in range(4)],
            *[conv(f'neck.fpn_convs.{i}.conv', 256, 256, 3) for i in range(4)],
            conv('rpn_head.rpn_conv', 256, 256, 3),
            conv('rpn_head.rpn_cls', 3, 256, 1),
            conv('rpn_head.rpn_reg', 12, 256, 1),
            linear('roi_head.bbox_head.fc_cls', 81, 1024),
            linear('roi_head.bbox_head.fc_reg', 320, 1024),
            linear('roi_head.bbox_head.shared_fcs.0', 1024, 256 * 49),
            linear('roi_head.bbox_head.shared_fcs.1', 1024, 1024),
            *[conv(f'roi_head.mask_head.convs.{i}.conv', 256, 256, 3) for i in range(4)],
            conv('roi_head.mask_head.upsample', 256, 256, 2),
            conv('roi_head.mask_head.conv_logits', 80, 256, 1),
        ]
    )


def dino(channels: tuple[int, ...], levels: int = 4) -> Shapes:
    channels = channels[5 - levels :]
    return merge(
        [
            {'level_embed': (levels, 256), 'query_embedding.weight': (900, 256)},
            {'dn_query_generator.label_embedding.weight': (80, 256)},
            *[conv_gn(f'neck.convs.{i}', 256, c, 1) for i, c in enumerate(channels)],
            conv_gn('neck.extra_convs.0', 256, channels[-1], 3),
            *[deformable(f'encoder.layers.{i}.self_attn', levels) for i in range(6)],
            *[ffn(f'encoder.layers.{i}.ffn', 2048) | norms(f'encoder.layers.{i}', 2) for i in range(6)],
            *[attention(f'decoder.layers.{i}.self_attn') for i in range(6)],
            *[deformable(f'decoder.layers.{i}.cross_attn', levels) for i in range(6)],
            *[ffn(f'decoder.layers.{i}.ffn', 2048) | norms(f'decoder.layers.{i}', 3) for i in range(6)],
            norm('decoder.norm', 256),
            linear('decoder.ref_point_head.layers.0', 256, 512),
            linear('decoder.ref_point_head.layers.1', 256, 256),
            linear('memory_trans_fc', 256, 256),
            norm('memory_trans_norm', 256),
            *[linear(f'bbox_head.cls_branches.{i}', 80, 256) for i in range(7)],
            *[linear(f'bbox_head.reg_branches.{i}.{j}', 256, 256) for i in range(7) for j in (0, 2)],
            *[linear(f'bbox_head.reg_branches.{i}.4', 4, 256) for i in range(7)],
        ]
    )


def upernet(channels: tuple[int, ...]) -> Shapes:
    return merge(
        [
            conv('decode_head.conv_seg', 150, 512, 1),
            *[conv_bn(f'decode_head.psp_modules.{i}.1', 512, channels[3], 1) for i in range(4)],
            conv_bn('decode_head.bottleneck', 512, channels[3] + 4 * 512, 3),
            *[conv_bn(f'decode_head.lateral_convs.{i}', 512, channels[i], 1) for i in range(3)],
            *[conv_bn(f'decode_head.fpn_convs.{i}', 512, 512, 3) for i in range(3)],
            conv_bn('decode_head.fpn_bottleneck', 512, 4 * 512, 3),
            conv('auxiliary_head.conv_seg', 150, 256, 1),
            conv_bn('auxiliary_head.convs.0', 256, channels[2], 3),
        ]
    )


def mask2former(channels: tuple[int, ...], numbered: bool = False) -> Shapes:
    """`numbered`: as mmdet 2 and mmseg before 1.0 name the layers of transformers."""
    pixel, decoder = 'decode_head.pixel_decoder', 'decode_head.transformer_decoder'
    pixel_attention, feed_forward = ('attentions.0', 'ffns.0') if numbered else ('self_attn', 'ffn')
    attentions = ('attentions.0', 'attentions.1') if numbered else ('cross_attn', 'self_attn')
    return merge(
        [
            *[conv_gn(f'{pixel}.input_convs.{i}', 256, channels[3 - i], 1, bias=True) for i in range(3)],
            *[deformable(f'{pixel}.encoder.layers.{i}.{pixel_attention}', 3) for i in range(6)],
            *[ffn(f'{pixel}.encoder.layers.{i}.{feed_forward}', 1024) for i in range(6)],
            *[norms(f'{pixel}.encoder.layers.{i}', 2) for i in range(6)],
            {f'{pixel}.level_encoding.weight': (3, 256)},
            conv_gn(f'{pixel}.lateral_convs.0', 256, channels[0], 1),
            conv_gn(f'{pixel}.output_convs.0', 256, 256, 3),
            conv(f'{pixel}.mask_feature', 256, 256, 1),
            *[attention(f'{decoder}.layers.{i}.{name}') for i in range(9) for name in attentions],
            *[
                ffn(f'{decoder}.layers.{i}.{feed_forward}', 2048) | norms(f'{decoder}.layers.{i}', 3)
                for i in range(9)
            ],
            norm(f'{decoder}.post_norm', 256),
            {'decode_head.query_embed.weight': (100, 256), 'decode_head.query_feat.weight': (100, 256)},
            {'decode_head.level_embed.weight': (3, 256)},
            linear('decode_head.cls_embed', 151, 256),
            *[linear(f'decode_head.mask_embed.{i}', 256, 256) for i in (0, 2, 4)],
        ]
    )


# What mmcv 1 saves beside parameters, and mmengine does.
TABLES = {f'backbone.relative_{name}{i}': (4,) for i in (1, 2, 3, 4) for name in ('pos_index', 'coords_table')}
PREPROCESSOR = {'data_preprocessor.mean': (3, 1, 1), 'data_preprocessor.std': (3, 1, 1)}

MMCV_META = {'CLASSES': ('wall', 'building'), 'PALETTE': [[120, 120, 120], [180, 120, 120]], 'config': 'model = ...'}
MMENGINE_META = {'dataset_meta': {'CLASSES': ('person', 'bicycle'), 'palette': [(1, 2, 3)]}, 'epoch': 12}
FRAMEWORKS = {
    'mask_rcnn_micro_coco': ('Mask R-CNN', mask_rcnn(CHANNELS['micro']), TABLES, MMCV_META),
    'dino_4scale_micro_coco': ('DINO', dino(CHANNELS['micro']), PREPROCESSOR, MMENGINE_META),
    'upernet_micro_ade20k': ('UperNet', upernet(CHANNELS['micro']), TABLES, MMCV_META),
    'mask2former_micro_ade20k': ('Mask2Former', mask2former(CHANNELS['micro']), PREPROCESSOR, MMENGINE_META),
}


def backbone(variant: str) -> Shapes:
    shapes = json.loads((parity.FOLDER / f'manifest_transnext_{variant}.json').read_text())
    return {f'backbone.{name}': tuple(shape) for name, shape in shapes.items()}


def save(path: Path, shapes: Shapes, meta: dict | None = None, **entries: object) -> dict[str, torch.Tensor]:
    """Write a file like one that was trained, its backbone the one of the recorded features."""
    state_dict = {name: torch.rand(shape) for name, shape in shapes.items()}
    for name, value in parity.released_state_dict('transnext_micro').items():
        if f'backbone.{name}' in state_dict:
            state_dict[f'backbone.{name}'] = value
    torch.save({'meta': meta or {}, 'state_dict': state_dict, **entries}, path)
    return state_dict


def read_config(name: str) -> Config:
    return Config.fromfile(ROOT / f'configs/transnext/{name}.py')


def build(config: Config) -> torch.nn.Module:
    init_default_scope(config.default_scope)
    with torch.device('meta'):
        return MODELS.build(config.model)


@pytest.mark.parametrize('name', FRAMEWORKS)
def test_converted_file_is_one_of_the_config(name: str, tmp_path: Path, tool: InProcess) -> None:
    framework, heads, buffers, meta = FRAMEWORKS[name]
    released = save(tmp_path / 'released.pth', backbone('micro') | heads | buffers, meta, optimizer={'state': {}})
    config = ROOT / f'configs/transnext/{name}.py'
    printed = tool(tmp_path, TOOL, 'released.pth', 'converted.pth', '--config', config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['converted.pth', 'released.pth']

    # As tools/test.py compares, and torch itself.
    weights = read_state_dict(str(tmp_path / 'converted.pth'))
    model = build(read_config(name))
    check_fit('converted.pth', weights, model.state_dict(), strict=True)
    model.load_state_dict(weights, strict=True, assign=True)
    loaded = model.state_dict()
    for head in heads:
        assert torch.equal(loaded[head], released[head]), head
    assert set(loaded) == set(weights)

    num_neck = sum(head.startswith('neck.') for head in heads)
    assert f'{framework} with TransNeXt-Micro' in printed
    assert f'mapped: {len(backbone("micro"))} backbone, {num_neck} neck, {len(heads) - num_neck} heads' in printed
    assert f': {len(buffers)}, {next(iter(buffers))}, ' in printed
    assert 'the state of the training, not of the model: 2, optimizer, meta.' in printed
    dataset_meta = torch.load('converted.pth')['meta']['dataset_meta']
    classes = meta.get('CLASSES') or meta['dataset_meta']['CLASSES']
    assert dataset_meta['classes'] == classes
    assert set(dataset_meta) == {'classes', 'palette'}


@torch.no_grad()
def test_converted_backbone_gives_the_recorded_features(tmp_path: Path, tool: InProcess) -> None:
    save(tmp_path / 'released.pth', backbone('micro') | conv('decode_head.conv_seg', 150, 512, 1))
    tool(tmp_path, TOOL, 'released.pth', 'converted.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'converted.pth'), prefix='backbone.')
    transnext = TransNeXt('micro', init_cfg=init_cfg)
    transnext.init_weights()
    parity.check_features(transnext.eval(), 'transnext_micro_extrapolate_224x224')


RELEASED = {
    name.format(variant): (variant, heads)
    for variant in ('tiny', 'small', 'base')
    for name, heads in {
        'mask_rcnn_{}_coco': mask_rcnn(CHANNELS[variant]),
        'dino_5scale_{}_coco': dino(CHANNELS[variant], levels=5),
        'upernet_{}_ade20k': upernet(CHANNELS[variant]),
        'mask2former_{}_ade20k': mask2former(CHANNELS[variant]),
    }.items()
} | {'dino_4scale_tiny_coco': ('tiny', dino(CHANNELS['tiny']))}


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=() if 'tiny' in name or 'upernet' in name else pytest.mark.every_config)
        for name in RELEASED
    ],
)
def test_every_file_of_the_release_fits_its_config(name: str) -> None:
    """Names and shapes alone."""
    variant, heads = RELEASED[name]
    shapes = backbone(variant) | heads | TABLES | PREPROCESSOR
    released = {name: torch.empty(shape, device='meta') for name, shape in shapes.items()}
    conversion = convert('released.pth', {'state_dict': released}, released, TransNeXt)
    assert conversion.variant == variant
    own = build(read_config(name)).state_dict()
    check_fit('released.pth', conversion.weights, own, strict=True)


def test_numbered_layers_of_older_mask2former() -> None:
    shapes = backbone('micro') | mask2former(CHANNELS['micro'], numbered=True)
    released = {name: torch.empty(shape, device='meta') for name, shape in shapes.items()}
    weights = convert('released.pth', {'state_dict': released}, released, TransNeXt).weights
    heads = {name: value.shape for name, value in weights.items() if not name.startswith('backbone.')}
    assert heads == mask2former(CHANNELS['micro'])


ATTENTION = dict(embed_dims=256, num_heads=8)
DEFORMABLE = dict(embed_dims=256, num_levels=2, dropout=0.0)
FFN = dict(embed_dims=256, feedforward_channels=64, num_fcs=2)


@pytest.mark.parametrize('place', ['transformer_decoder', 'pixel_decoder.encoder'])
@torch.no_grad()
def test_numbered_layers_compute_the_same(place: str) -> None:
    """The layer that mmdet 2 builds Mask2Former from is still in mmcv."""
    if place == 'transformer_decoder':
        attention_type, options, order = 'MultiheadAttention', ATTENTION, ('cross_attn', 'norm', 'self_attn', 'norm')
        batch_first = dict(**ATTENTION, batch_first=True)
        today = Mask2FormerTransformerDecoderLayer(self_attn_cfg=batch_first, cross_attn_cfg=batch_first, ffn_cfg=FFN)
        inputs = dict(query=torch.rand(2, 5, 256), key=torch.rand(2, 7, 256), value=torch.rand(2, 7, 256))
    else:
        attention_type, options, order = 'MultiScaleDeformableAttention', DEFORMABLE, ('self_attn', 'norm')
        today = DeformableDetrTransformerEncoderLayer(self_attn_cfg=dict(**DEFORMABLE, batch_first=True), ffn_cfg=FFN)
        inputs = dict(
            query=torch.rand(1, 20, 256),
            query_pos=torch.rand(1, 20, 256),
            spatial_shapes=torch.tensor([[4, 4], [2, 2]]),
            level_start_index=torch.tensor([0, 16]),
            reference_points=torch.rand(1, 20, 2, 2),
        )
    older = BaseTransformerLayer(
        attn_cfgs=dict(type=attention_type, **options),
        ffn_cfgs=dict(type='FFN', **FFN),
        operation_order=(*order, 'ffn', 'norm'),
        batch_first=True,
    ).eval()
    for parameter in older.parameters():
        parameter.normal_(std=0.1)

    # The layer as a part of a whole file.
    prefix = f'decode_head.{place}.layers.3.'
    file = {name: torch.empty(shape, device='meta') for name, shape in backbone('micro').items()}
    file |= {f'{prefix}{name}': value for name, value in older.state_dict().items()}
    weights = convert('x.pth', {'state_dict': file}, file, TransNeXt).weights
    converted = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    today.eval().load_state_dict(converted, strict=True)
    more = {} if place == 'transformer_decoder' else dict(key_padding_mask=None)
    assert torch.equal(older(**inputs), today(**inputs, **more))


def test_averaged_weights_and_wrappers(tmp_path: Path) -> None:
    """A parallel wrapper's prefix, mmcv's and mmengine's second sets of weights."""
    shapes = {f'module.{name}': shape for name, shape in (backbone('micro') | upernet(CHANNELS['micro'])).items()}
    shapes |= {'module.ema_backbone_norm1_weight': (48,)}
    save(tmp_path / 'released.pth', shapes, ema_state_dict={'steps': torch.zeros(())}, message_hub={})
    out = run(tmp_path, TOOL, 'released.pth', 'converted.pth')
    assert '(EMA); the set that mmdet and mmseg load is kept: 2, ema_state_dict, ema_backbone_norm1_weight' in out
    assert 'the state of the training, not of the model: 1, message_hub' in out
    assert 'not compared with a model' in out
    assert len(read_state_dict(str(tmp_path / 'converted.pth'))) == len(shapes) - 1


# A backbone of one value for each parameter: names are compared before shapes.
NAMES = dict.fromkeys(backbone('micro'), ())
HEAD = dict.fromkeys(upernet(CHANNELS['micro']), ())
REFUSED = {
    'unknown entries': (
        NAMES | HEAD | {'decode_head.depth.weight': (1,), 'backbone.block1.0.attn.gate': (1,), 'steps': (1,)},
        r'error: x.pth has 3 entries of \d+ that are neither of TransNeXt nor of Mask R-CNN, DINO, UperNet, '
        r'Mask2Former as mmdet 2 and 3 and mmseg 0 and 1 name them: '
        r'backbone.block1.0.attn.gate, decode_head.depth.weight, steps$',
    ),
    'another backbone': (
        {'backbone.conv1.weight': (8,), 'backbone.bn1.weight': (8,)} | mask_rcnn((1, 1, 1, 1)),
        r'error: x.pth has 2 entries of \d+ .* name them: backbone.conv1.weight, backbone.bn1.weight$',
    ),
    'heads of two frameworks': (
        NAMES | HEAD | {'rpn_head.rpn_conv.bias': (256,)},
        'error: x.pth has 1 entries .* name them: rpn_head.rpn_conv.bias$',
    ),
    'incomplete backbone': (
        {name: shape for name, shape in (backbone('micro') | HEAD).items() if 'block3.1' not in name},
        r'error: x.pth .its backbone taken as TransNeXt-Micro. is not a checkpoint of this model; '
        r'\d+ missing in the file: stages.2.blocks.1.norm1.weight, ',
    ),
    'ImageNet release': (
        {name.removeprefix('backbone.'): () for name in NAMES} | {'head.weight': (1000, 384)},
        'error: x.pth is a backbone alone, .*: nothing to convert, '
        r"init_cfg=dict\(type='Pretrained', checkpoint='x.pth'\) of the backbone takes it as it is$",
    ),
    'no head': (backbone('micro'), 'error: x.pth has a backbone and no head: '),
    'names of this package': (
        {'backbone.stages.0.patch_embed.proj.weight': (48, 3, 7, 7), 'decode_head.conv_seg.bias': (150,)},
        'error: x.pth has the names of this package already: nothing to convert$',
    ),
    'both names of an entry': (
        backbone('micro')
        | {f'decode_head.transformer_decoder.layers.0.{name}.layers.1.bias': (256,) for name in ('ffn', 'ffns.0')},
        'error: x.pth has entries under their older and their newer name at once$',
    ),
}


@pytest.mark.parametrize(('shapes', 'message'), REFUSED.values(), ids=REFUSED)
def test_refuses_other_files(shapes: Shapes, message: str, tmp_path: Path, tool: InProcess) -> None:
    torch.save({'state_dict': {name: torch.zeros(shape) for name, shape in shapes.items()}}, tmp_path / 'x.pth')
    assert re.match(message, tool.refused(tmp_path, TOOL, 'x.pth', 'out.pth'))


def test_refuses_to_overwrite(tmp_path: Path, tool: InProcess) -> None:
    (tmp_path / 'out.pth').write_text('precious')
    line = tool.refused(tmp_path, TOOL, 'x.pth', 'out.pth')
    assert line == 'error: out.pth is there already: name another file'
    assert (tmp_path / 'out.pth').read_text() == 'precious'


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['x.pth', 'out.pth'], 'error: checkpoint not found: x.pth'),
        (['x.pth', 'none/out.pth'], 'error: no such folder: none'),
        (['x.pth', 'out.pth', '--config', 'none.py'], 'error: config not found: none.py'),
    ],
)
def test_refuses_paths(args: list[str], message: str, tmp_path: Path, tool: InProcess) -> None:
    assert tool.refused(tmp_path, TOOL, *args).startswith(message)


def test_refuses_the_config_of_another_model(tmp_path: Path, tool: InProcess) -> None:
    shapes = backbone('micro') | upernet(CHANNELS['micro'])
    torch.save({name: torch.zeros(()).expand(shape) for name, shape in shapes.items()}, tmp_path / 'x.pth')
    config = ROOT / 'configs/transnext/mask2former_micro_ade20k.py'
    line = tool.refused(tmp_path, TOOL, 'x.pth', 'out.pth', '--config', str(config))
    assert re.match(
        r'error: x.pth .for .*mask2former_micro_ade20k.py. is not a checkpoint of this model; \d+ missing in the '
        r'file: decode_head.pixel_decoder.*; \d+ unknown to the model: decode_head.conv_seg.weight',
        line,
    )
