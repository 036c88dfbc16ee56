"""`--backbone timm/NAME`: the four frameworks with plain backbones and pyramids, complete without a config."""

from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS

from bioattn_mm.training.config.backbone import RECIPES
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.model_check import model_of
from bioattn_mm.training.config.pipelines import data_preprocessor_of

from ...docs.blocks import read_blocks
from ...hosts.inputs import after_a_step, inputs_for
from ...own_folders import write_coco_folder
from ...tools.running import InProcess
from ...tools.small_images import SMALL

# The names, and what makes a small model of them.
SMALL_VIT = dict(init_cfg=None, embed_dim=32, depth=4, num_heads=2)
BACKBONES = {
    'vit_small_patch14_dinov2': {f'model.backbone.{name}': value for name, value in SMALL_VIT.items()},
    'convnext_atto': {'model.backbone.init_cfg': None},
}
# The options of each framework for small images, and for smaller heads, which are the libraries'.
OPTIONS = dict(
    mask_rcnn={
        'model.roi_head.bbox_head.fc_out_channels': 64,
        'model.roi_head.mask_head.num_convs': 1,
        'model.train_cfg.rcnn.sampler.num': 64,
        'model.train_cfg.rpn_proposal.max_per_img': 100,
    },
    dino={'model.num_queries': 20, 'model.encoder.num_layers': 2, 'model.decoder.num_layers': 2},
    mask2former={'model.data_preprocessor.size': (72, 104), 'model.decode_head.transformer_decoder.num_layers': 3},
    mask2former_instance={
        'model.data_preprocessor.batch_augments.0.size': (72, 104),
        'model.panoptic_head.transformer_decoder.num_layers': 3,
    },
    upernet={'model.data_preprocessor.size': (72, 104), 'model.decode_head.channels': 64},
)


@pytest.mark.parametrize(
    ('framework', 'name'),
    [
        *((framework, 'vit_small_patch14_dinov2') for framework in RECIPES),
        *((framework, 'convnext_atto') for framework in ('mask_rcnn', 'dino', 'upernet')),
    ],
)
def test_learns(framework: str, name: str) -> None:
    config = load_config(framework, backbone=f'timm/{name}', cfg_options={**BACKBONES[name], **OPTIONS[framework]})
    model = after_a_step(config, inputs_for(config, (72, 104), with_mask=True))
    assert [n for n, parameter in model.backbone.named_parameters() if parameter.grad is None] == []
    again = load_config(config)  # as the tools read it from the work dir
    assert again.model.to_dict() == config.model.to_dict()


@pytest.mark.parametrize(
    ('base', 'head'),
    [
        ('mask_rcnn', lambda model: model.rpn_head.anchor_generator),
        ('mask2former', lambda model: model.decode_head),
        # Whose heads begin with 8.
        ('transnext/retinanet_tiny_coco', lambda model: model.bbox_head.anchor_generator),
        ('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', lambda model: model.bbox_head.anchor_generator),
    ],
)
def test_strides_are_the_heads(base: str, head: Callable, tmp_path: Path) -> None:
    if '::' in base:
        (tmp_path / 'config.py').write_text(f'_base_ = {base!r}\n')
        base = str(tmp_path / 'config.py')
    plain = load_config(base, backbone='timm/vit_small_patch14_dinov2').model
    assert MODELS.build(plain.neck).strides == tuple(head(plain).strides)
    if 'bbox_head' in plain:
        pyramid = load_config(base, backbone='timm/convnext_atto').model
        maps = MODELS.build({**pyramid.backbone, 'init_cfg': None}).out_strides
        assert list(maps)[pyramid.neck.get('start_level', 0) :] == [8, 16, 32] == list(head(plain).strides[:3])


def test_images_and_decay_as_the_weights_want_them() -> None:
    options = {**BACKBONES['vit_small_patch14_dinov2'], 'optim_wrapper.paramwise_cfg.layer_decay_rate': 0.5}
    config = load_config('upernet', backbone='timm/vit_small_patch14_dinov2', cfg_options=options)
    model = model_of(config)
    groups = build_optim_wrapper(model, config.optim_wrapper).optimizer.param_groups
    settings = {id(p): (group['lr'], group['weight_decay']) for group in groups for p in group['params']}
    base = config.optim_wrapper.optimizer
    vit = model.backbone.model
    assert settings[id(vit.pos_embed)] == (base.lr * 0.5**5, 0)
    assert settings[id(vit.blocks[3].mlp.fc1.weight)] == (base.lr * 0.5, base.weight_decay)
    assert settings[id(model.neck.levels[0][0].weight)] == (base.lr, base.weight_decay)

    for base in ('upernet', 'convit/convit-tiny_8xb128_in1k'):
        config = load_config(base, backbone='timm/vit_base_patch16_siglip_224')
        assert data_preprocessor_of(config)['mean'] == [127.5] * 3


def test_trained_on_own_data(tool: InProcess, tmp_path: Path) -> None:
    """The command of docs/any_model.md, without a config, for a shorter time."""
    (command,) = (block.text for block in read_blocks('docs/any_model.md') if block.language == 'bash')
    *call, _ = command.split()[2:]
    write_coco_folder(tmp_path / 'parts', range(6))
    small = {**BACKBONES['vit_small_patch14_dinov2'], **OPTIONS['mask_rcnn'], 'train_dataloader.batch_size': 2}
    options = [f'{key}={value}' for key, value in small.items()]
    tool(tmp_path, 'train.py', *call, 1, '--cfg-options', *SMALL, *options)
    assert (tmp_path / 'work_dirs/timm/mask_rcnn_vit_small_patch14_dinov2_parts/epoch_1.pth').is_file()
