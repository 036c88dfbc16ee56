"""Every config builds what its sources publish: the table of `published_settings.py`."""

import re
from functools import cache

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATA_SAMPLERS, MODELS, PARAM_SCHEDULERS, init_default_scope

from bioattn_mm.systems.transnext.ablations import NoPositionBias
from bioattn_mm.systems.transnext.position_bias import PositionBias
from bioattn_mm.training.config.pipelines import as_list

from .published_settings import SETTINGS, SOURCES
from .reading import ABLATIONS, CONFIGS, parse, shared_model

NAMES = {f'{path.parts[1]}/{path.stem}': path for path in (*CONFIGS, *ABLATIONS)}
# Transforms that neither change an image nor choose one.
UNCHANGING = 'LoadImageFromFile LoadAnnotations LoadPanopticAnnotations ChannelsFirst'.split()
UNCHANGING += 'PackDetInputs PackSegInputs PackInputs'.split()


@cache
def published(name: str) -> dict[str, object]:
    """The settings that the table has for a config."""
    return {setting: value for configs, setting, value, _ in SETTINGS if re.match(configs, name)}


@pytest.mark.parametrize('name', NAMES)
def test_config_builds_the_published_settings(name: str) -> None:
    config = parse(NAMES[name])
    init_default_scope(config.default_scope)
    model = shared_model(config)
    measured = {
        **settings_of_optimizer(config, model, published(name)['no weight decay']),
        **settings_of_schedule(config),
        **settings_of_images(config),
        **settings_of_model(config, model),
    }
    assert measured.keys() == published(name).keys()
    differing = {
        setting: dict(measured=measured[setting], published=value)
        for setting, value in published(name).items()
        if measured[setting] != value
    }
    assert not differing


def settings_of_optimizer(config: Config, model: torch.nn.Module, no_decay: set[str]) -> dict[str, object]:
    """Measured on the groups of the built optimizer."""
    wrapper = build_optim_wrapper(model, config.optim_wrapper)
    defaults = wrapper.optimizer.defaults
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    names = {id(parameter): name for name, parameter in parameters.items()}
    groups = {names[id(weight)]: group for group in wrapper.optimizer.param_groups for weight in group['params']}
    assert groups.keys() == parameters.keys()

    rates, decayed = {}, {}
    for name, group in groups.items():
        part = 'neck and heads' if not name.startswith('backbone.') else 'the backbone'
        part = 'the Gaussians' if '.gaussian.' in name else part
        rates.setdefault(f'rates of {part}', set()).add(round(group['lr'] / defaults['lr'], 6))
        decayed[name] = group['weight_decay']
    expected = {
        name: 0
        if any(part in name for part in no_decay) or ('flat' in no_decay and parameter.ndim == 1)
        else defaults['weight_decay']
        for name, parameter in parameters.items()
    }
    return {
        'optimizer': dict(
            type=type(wrapper.optimizer).__name__,
            **{key: defaults[key] for key in ('lr', 'betas', 'momentum', 'weight_decay') if key in defaults},
        ),
        'precision': type(wrapper).__name__,
        'gradient clipping': wrapper.clip_grad_kwargs and wrapper.clip_grad_kwargs['max_norm'],
        'accumulated steps': wrapper._accumulative_counts,
        **{part: pytest.approx(sorted(values), rel=1e-4) for part, values in rates.items()},
        'no weight decay': no_decay
        if decayed == expected
        else {name: decay for name, decay in decayed.items() if decay != expected[name]},
    }


def settings_of_schedule(config: Config) -> dict[str, object]:
    """Read in the config; the schedulers and what they name exist."""
    assert all(scheduler['type'] in PARAM_SCHEDULERS for scheduler in config.param_scheduler)
    by_epoch = 'max_epochs' in config.train_cfg
    interval = config.train_cfg.val_interval
    loop = dict(epochs=config.train_cfg.max_epochs) if by_epoch else dict(iterations=config.train_cfg.max_iters)
    checkpoint = config.default_hooks.checkpoint
    # The best checkpoint is one of those that were validated.
    assert checkpoint.interval == interval and checkpoint.get('by_epoch', True) == by_epoch
    return {
        'loop': dict(**loop, validation=interval),
        'schedule': [dict(scheduler) for scheduler in config.param_scheduler],
        'best checkpoint': checkpoint.save_best,
        'images per GPU': config.train_dataloader.batch_size,
        'base batch size': config.auto_scale_lr.base_batch_size,
    }


def settings_of_images(config: Config) -> dict[str, object]:
    """Measured on the built preprocessor and on pipelines that can be built."""
    preprocessor = MODELS.build(config.model.data_preprocessor)
    if config.default_scope == 'mmpretrain':
        padding = None
    elif config.default_scope == 'mmdet':
        divisor = preprocessor.pad_size_divisor
        augments = preprocessor.batch_augments
        padding = dict(train=augments[0].size if augments else divisor, test=divisor)
    else:
        padding = dict(train=preprocessor.size, test=(preprocessor.test_cfg or {}).get('size_divisor'))
    pipelines = [config[f'{kind}_dataloader'].dataset.pipeline for kind in ('train', 'val', 'test')]
    for pipeline in (*pipelines, config.tta_pipeline or []):
        Compose(pipeline)
    assert pipelines[1] == pipelines[2]
    measured = {
        'normalisation': dict(
            **{key: pytest.approx(getattr(preprocessor, key).flatten().tolist()) for key in ('mean', 'std')},
            bgr_to_rgb=bool(preprocessor._channel_conversion if padding else preprocessor.to_rgb),
        ),
        'training images': steps_of(pipelines[0]),
        'test images': steps_of(pipelines[2]),
    }
    if padding:
        measured['padding'] = padding
        assert bool(config.tta_pipeline) == bool(config.tta_model)
        measured['multi-scale test images'] = config.tta_pipeline and [
            step.scale for step in config.tta_pipeline[1].transforms[0]
        ]
    if config.default_scope == 'mmdet':
        measured['images without objects'] = not config.train_dataloader.dataset.filter_cfg.filter_empty_gt
    if config.default_scope == 'mmpretrain':
        assert steps_of(config.tta_pipeline[:-1]) == steps_of(pipelines[2])
        sampler = DATA_SAMPLERS.build({**config.train_dataloader.sampler, 'dataset': range(9), 'seed': 0})
        measured['repeated augmentation'] = getattr(sampler, 'num_repeats', 1)
    return measured


def steps_of(pipeline: list) -> list:
    """The transforms that change images: type and arguments, those within a choice as lists."""
    steps = []
    for transform in pipeline:
        arguments = dict(transform)
        kind = re.sub(r'^bioattn_mm\.(Checked|InOrder|Counted|Table)?', '', arguments.pop('type'))
        if kind == 'RandomChoice':
            steps.append((kind, [steps_of(branch) for branch in arguments['transforms']]))
        elif kind not in UNCHANGING:
            steps.append((kind, arguments))
    return steps


def settings_of_model(config: Config, model: torch.nn.Module) -> dict[str, object]:
    """Measured on the built model, or read in its config where a module keeps nothing of it."""
    if config.default_scope == 'mmdet':
        if 'rpn_head' in config.model:
            measured = mask_rcnn(model, config.model.rpn_head.anchor_generator)
        elif config.model.type == 'RetinaNet':
            measured = retinanet(model, config.model.bbox_head.anchor_generator)
        elif config.model.type == 'Mask2Former':
            measured = dict(head=mask2former(model.panoptic_head), testing=segments(model))
        else:
            measured = dino(model)
    elif config.default_scope == 'mmpretrain':
        measured = classifier(model, config)
    else:
        is_upernet = config.model.decode_head.type == 'bioattn_mm.UPerHead'
        whole = model.test_cfg.mode == 'whole'
        head = upernet(model) if is_upernet else mask2former(model.decode_head)
        measured = dict(head=head, testing=dict(mode='whole') if whole else dict(model.test_cfg))
    backbone = config.model.backbone
    measured['weights'] = (config.model.get('init_cfg') or backbone.get('init_cfg') or {}).get('checkpoint')
    measured['drop path'] = backbone.get('drop_path_rate', 0.0)
    sync = [isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()]
    measured['batch norm over all GPUs'] = any(sync) or config.get('sync_bn') == 'torch'
    if hasattr(model.backbone, 'blocks') and config.default_scope != 'mmpretrain':
        measured['pyramid'] = model.neck.strides
    if backbone.type == 'bioattn_mm.TransNeXt':
        biases = [module for module in model.backbone.modules() if isinstance(module, PositionBias)]
        modes = {bias.bias_mode for bias in biases if not isinstance(bias, NoPositionBias)}
        measured['position bias'] = position_bias(config, model.backbone, *modes) if modes else None  # such as PVTv2
    if 'new_position_bias' in backbone:
        measured['position bias drawn anew'] = model.backbone.new_position_bias
    if backbone.type == 'bioattn_mm.VARS':
        without = backbone.attention in ('softmax', 'performer', 'global_filter')
        measured['steps'] = None if without else backbone.get('num_steps', 3)
    return measured


def position_bias(config: Config, backbone: torch.nn.Module, mode: str) -> tuple:
    """Mode, training size, and the mode of multi-scale testing."""
    bias = backbone.stages[0].blocks[0].attn.position_bias
    grid = bias.train_grid if mode == 'interpolate' else bias.pretrain_grid
    assert grid[0] == grid[1]
    overrides = config.get('tta_overrides')
    return (mode, 4 * grid[0], *([overrides.model.backbone.bias_mode] if overrides else []))


def classifier(model: torch.nn.Module, config: Config) -> dict[str, object]:
    mixing = model.data_preprocessor.batch_augments
    assert not mixing or mixing.probs is None  # all with the same probability
    averages = [hook.momentum for hook in config.custom_hooks if hook.type == 'bioattn_mm.ShardableEMAHook']
    smoothing = getattr(model.head.loss_module, 'label_smooth_val', None)
    return {
        'mixed images': [(type(augment).__name__, augment.alpha) for augment in (mixing.augments if mixing else [])],
        'head': dict(classes=model.head.fc.out_features, label_smoothing=smoothing),
        'averaged weights': next(iter(averages), None),
    }


def mask_rcnn(model: torch.nn.Module, anchors: dict) -> dict[str, object]:
    """Of Mask R-CNN and of Cascade Mask R-CNN, whose stages have an overlap of positive regions and a loss weight."""
    training, rcnn = as_list(model.train_cfg.rcnn), model.test_cfg.rcnn
    (classes,) = {part.num_classes for part in model.roi_head.modules() if hasattr(part, 'num_classes')}
    ((regions, positive),) = {(stage.sampler.num, stage.sampler.pos_fraction) for stage in training}
    head = dict(classes=classes, anchor_scales=anchors.scales, anchor_ratios=anchors.ratios)
    head.update(regions=regions, positive=positive, proposals=model.train_cfg.rpn_proposal.max_per_img)
    if len(training) > 1:
        overlaps = [stage.assigner.pos_iou_thr for stage in training]
        head['stages'] = list(zip(overlaps, model.roi_head.stage_loss_weights, strict=True))
    testing = dict(score=rcnn.score_thr, nms=rcnn.nms.iou_threshold, per_image=rcnn.max_per_img)
    testing.update(mask=rcnn.mask_thr_binary, proposals=model.test_cfg.rpn.max_per_img)
    return dict(head=head, testing=testing)


def retinanet(model: torch.nn.Module, anchors: dict) -> dict[str, object]:
    testing = model.test_cfg
    head = dict(classes=model.bbox_head.num_classes, anchor_scale=anchors.octave_base_scale)
    head.update(octaves=anchors.scales_per_octave, anchor_ratios=anchors.ratios, strides=anchors.strides)
    tested = dict(score=testing.score_thr, nms=testing.nms.iou_threshold, per_image=testing.max_per_img)
    return dict(head=head, testing=dict(tested, candidates=testing.nms_pre))


def dino(model: torch.nn.Module) -> dict[str, object]:
    attentions = [module for module in model.modules() if hasattr(module, 'sampling_offsets')]
    (levels,) = {model.level_embed.shape[0], *(attention.num_levels for attention in attentions)}
    head = dict(classes=model.bbox_head.num_classes, queries=model.num_queries, levels=levels)
    head.update(layers=(len(model.encoder.layers), len(model.decoder.layers)))
    head.update(denoising=model.dn_query_generator.num_dn_queries)
    head.update(costs=[cost.weight for cost in model.train_cfg.assigner.match_costs])
    return dict(head=head, testing=dict(per_image=model.test_cfg.max_per_img))


def upernet(model: torch.nn.Module) -> dict[str, object]:
    head, auxiliary = model.decode_head, model.auxiliary_head
    assert auxiliary.num_classes == head.num_classes
    measured = dict(classes=head.num_classes, channels=head.channels, pool_scales=head.psp_modules.pool_scales)
    return dict(measured, auxiliary_channels=auxiliary.channels, auxiliary_weight=auxiliary.loss_decode.loss_weight)


def mask2former(head: torch.nn.Module) -> dict[str, object]:
    layers = (len(head.pixel_decoder.encoder.layers), len(head.transformer_decoder.layers))
    weights = [loss.loss_weight for loss in (head.loss_cls, head.loss_mask, head.loss_dice)]
    measured = dict(classes=head.num_classes, queries=head.num_queries, points=head.num_points)
    return dict(measured, layers=layers, weights=weights, no_object=head.class_weight[-1])


def segments(model: torch.nn.Module) -> dict[str, object]:
    fusion, config = model.panoptic_fusion_head, model.test_cfg
    head = model.panoptic_head
    assert (fusion.num_things_classes, fusion.num_stuff_classes) == (head.num_things_classes, head.num_stuff_classes)
    assert config.panoptic_on == (head.num_stuff_classes > 0) and config.filter_low_score
    measured = dict(segments=config.panoptic_on, instances=config.instance_on, per_image=config.max_per_image)
    # The least score of a segment: mmdet's default.
    least = config.get('object_mask_thr', 0.8) if config.panoptic_on else None
    return dict(measured, overlap=config.iou_thr, least=least)


def test_every_row_is_some_config_s() -> None:
    """A row that another one hides, or that no config matches, would state nothing."""
    used = {
        max(index for index, row in enumerate(SETTINGS) if row[1] == setting and re.match(row[0], name))
        for name in NAMES
        for setting in published(name)
    }
    assert [row for index, row in enumerate(SETTINGS) if index not in used] == []
    assert {row[3] for row in SETTINGS} == set(SOURCES)
