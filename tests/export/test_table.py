"""The table of docs/export.md: what --via torch exports, in which formats and sizes; it compares each file."""

import json
from itertools import starmap
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from bioattn_mm.errors import InputError
from bioattn_mm.export.formats import CHECKED_PORTABLE, PACKAGES, check_outputs, export
from bioattn_mm.export.networks import Features, network_of
from bioattn_mm.runtime.backends import open_backend

from ..needs import needs
from ..systems.common.small_backbones import RVT, VARIANTS, other
from ..tools.random_weights import random_checkpoint
from ..tools.running import ROOT, InProcess

MASK_RCNN = str(ROOT / 'tests/tools/mask_rcnn_small.py')

SIZE = (64, 96)
# The smallest that have every kind of layer of their system.
TWO = dict(out_indices=(0, 1))  # blocks behind the last output are left out
BACKBONES = {
    **{name: VARIANTS[name] for name in ('TransNeXt', 'TransNeXt interpolated', 'TransNeXt pooled to 2 x 3')},
    'ConViT': other('ConViT', dict(TWO, local_up_to_layer=1)),
    'PerViT': other('PerViT', dict(out_indices=(0, 3)), depths=(1, 1, 1, 1)),
    'GABViT': other('GABViT', TWO),
    # The second block of a stage shifts its windows.
    'GABSwin': other('GABSwin', {}, depths=(2, 1, 1, 1)),
    **{
        f'VARS-{kind.upper()}': other('VARS', dict(TWO, attention=f'vars_{kind}'), **RVT | dict(depths=[1, 1]))
        for kind in ('s', 'd', 'sd')
    },
    'VARS-D in DeiT': other('VARS', dict(TWO, attention='vars_d'), block='deit'),
}
# These classifiers take something else than the average of the last map.
OUT_TYPES = dict(ConViT='cls_token', GABViT='avg_featmap', VARS='avg_featmap')
HEADED = ('TransNeXt', 'ConViT', 'PerViT', 'GABViT', 'VARS-D', 'VARS-SD')
# What is refused for a reason of the system, by (system, format, size).
REFUSED = {
    ('VARS-S', 'onnx', 'one'): 'torch.onnx cannot write this model',
    ('VARS-S', 'onnx', 'any'): 'torch.onnx cannot write this model',
    ('GABSwin', 'onnx', 'any'): 'GABSwin is exported for images of one size only',
    ('GABSwin', 'pt2', 'any'): 'GABSwin is exported for images of one size only',
}
HEADS, KINDS = ('classifier', 'UPerHead'), ('onnx', 'pt2')
# A model with a head at any size has its backbone at any size, too.
ROWS = [
    *((name, head, kind, 'any') for head in HEADS for kind in KINDS for name in HEADED),
    *((name, None, kind, 'any') for kind in KINDS for name in BACKBONES if name not in HEADED),
    *((name, None, kind, 'one') for kind in KINDS for name in BACKBONES),
    *(('GABSwin', head, kind, 'one') for head in HEADS for kind in KINDS),
    *(('VARS-S', head, 'pt2', 'any') for head in HEADS),
    *(('GABViT', 'FCNHead', kind, 'any') for kind in KINDS),
]
# The first two take a few seconds; then one of each format.
QUICK = [('GABSwin', None, 'pt2', 'any'), ('VARS-S', None, 'onnx', 'one')]
SLOW = [('GABViT', 'classifier', 'onnx', 'any'), ('ConViT', 'classifier', 'pt2', 'any')]


def marked(name: str, head: str | None, kind: str, size: str) -> object:
    """A row with marks for the packages that it needs, and for its time."""
    row, packages = (name, head, kind, size), [*PACKAGES[kind], *['openvino'] * (kind == 'onnx')]
    time = () if row in QUICK else [pytest.mark.slow if row in SLOW else pytest.mark.every_config]
    return pytest.param(*row, marks=[needs(*packages), *time])


def build(name: str, head: str | None) -> tuple[nn.Module, Config]:
    """A model with random weights and its config; without a head it is a segmentor whose head is left unused."""
    case, kind = BACKBONES[name], name.replace('-', ' ').split()[0]
    arguments = dict(type=f'bioattn_mm.{kind}', arch=case.arch, **case.options)
    backbone = MODELS.build(arguments)
    channels = [backbone.stage_channels[index] for index in backbone.out_indices]
    if head == 'classifier':
        config = Config.fromfile(ROOT / 'configs/transnext/transnext-micro_8xb128_in1k.py')
        arguments['out_indices'] = backbone.out_indices[-1:]
        if kind in OUT_TYPES:
            arguments['out_type'] = OUT_TYPES[kind]
            config.model.neck = None
        config.model.head.update(num_classes=3, in_channels=channels[-1])
    else:
        is_plain = len(channels) < 4
        system = 'convit/upernet_tiny_ade20k' if is_plain else 'transnext/upernet_micro_ade20k'
        config = Config.fromfile(ROOT / f'configs/{system}.py')
        if is_plain:
            strides = [backbone.stage_strides[index] for index in backbone.out_indices]
            sources = (0, 0, 1, 1)
            scales = tuple(strides[source] / stride for source, stride in zip(sources, (4, 8, 16, 32)))
            config.model.neck.update(in_channels=channels, out_channels=8, stride=strides)
            config.model.neck.update(sources=sources, scales=scales)
            channels = [8] * 4
        common = dict(channels=8, num_classes=3)
        config.model.decode_head.update(in_channels=channels, **common)
        if head == 'FCNHead':
            one_map = dict(in_channels=channels[-1], in_index=3, num_convs=1, align_corners=False)
            config.model.decode_head = dict(type=head, **one_map, **common)
        config.model.auxiliary_head = None
    config.model.backbone = arguments
    init_default_scope(config.default_scope)
    return MODELS.build(config.model).eval(), config


@pytest.mark.parametrize(('name', 'head', 'kind', 'size'), starmap(marked, ROWS))
def test_row(name: str, head: str | None, kind: str, size: str, tmp_path: Path) -> None:
    """A model is exported, which compares the file with it, or refused. What is in ONNX, OpenVINO runs, too."""
    model, config = build(name, head)
    pixels = SIZE if size == 'one' else None
    arguments = (model, config, kind, tmp_path, pixels)
    if (name, kind, size) in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name, kind, size]):
            export(*arguments, backbone=head is None)
        assert list(tmp_path.iterdir()) == []
        return
    file, pipeline = export(*arguments, backbone=head is None)
    assert file.stat().st_size > 10_000
    task = 'classification' if head == 'classifier' else 'segmentation' if head else 'features'
    assert json.loads(pipeline.read_text())['task'] == task
    if kind == 'onnx':
        image = torch.zeros(1, 3, *(pixels or (64, 64)))
        network = Features(model.backbone, image) if head is None else network_of(model, config)
        backend = open_backend('openvino', file)
        check_outputs(
            network,
            lambda image: [torch.from_numpy(output) for output in backend.run(image.numpy()).values()],
            [(1, *pixels)] if pixels else CHECKED_PORTABLE,
        )


@pytest.mark.slow
def test_backbone_of_a_detector(workplace: Path, tool: InProcess) -> None:
    """Through the tool, without the head, which chooses boxes in Python."""
    checkpoint, out = workplace / 'of_exported_detector.pth', workplace / 'exported_backbone'
    random_checkpoint(checkpoint, MASK_RCNN)
    tool(
        workplace, 'export.py', MASK_RCNN, checkpoint, '--via', 'torch', '--to', 'pt2', '--backbone', '--size',
        '64x96', '--mini', '--out', out,
    )  # fmt: skip
    pipeline = json.loads((out / 'pipeline.json').read_text())
    assert pipeline['task'] == 'features' and pipeline['architecture'] == 'MaskRCNN'
    maps = torch.export.load(out / 'model.pt2').module()(torch.zeros(1, 3, 64, 96))
    assert [tuple(output.shape[1:]) for output in maps] == [(24, 16, 24), (48, 8, 12), (48, 4, 6), (48, 2, 3)]


def test_heads_that_choose_are_refused() -> None:
    model, config = build('GABViT', 'classifier')
    model.head = MODELS.build(dict(type='mmpretrain.MultiLabelLinearClsHead', num_classes=3, in_channels=16))
    with pytest.raises(InputError, match='MultiLabelLinearClsHead: exported are classifiers of one class an image'):
        network_of(model, config)
    config = Config.fromfile(ROOT / 'configs/transnext/mask2former_micro_ade20k.py')
    config.model.backbone.arch = BACKBONES['TransNeXt'].arch
    config.model.decode_head.in_channels = list(BACKBONES['TransNeXt'].out_channels)
    init_default_scope(config.default_scope)
    with pytest.raises(InputError, match='Mask2FormerHead: --via torch exports segmentors whose decode_head gives'):
        network_of(MODELS.build(config.model), config)
