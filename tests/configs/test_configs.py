"""Every config: parses, builds, has the paper's size, and states only what differs; so do those of ablations."""

import re
from os.path import normpath
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope
from PIL import Image

from bioattn_mm.analysis.model_stats import Network, default_size, multiply_adds, random_image
from bioattn_mm.training.config.mini import make_mini
from bioattn_mm.training.installed import find_config

from .reading import ABLATIONS, CONFIGS, ROOT, parse, shared_model, stated

# Parameters in millions as TransNeXt's paper prints them; the metafile has the same, and so has the built model.
# UperNet's include the auxiliary head, left out at test time; the ImageNet classifier counts in none of them.
PARAMETERS = {
    f'{framework}_{arch}_{data}': float(number)
    for framework, data, numbers in (
        ('upernet', 'ade20k', dict(tiny='59', small='80', base='121')),
        ('mask2former', 'ade20k', dict(tiny='47.5', small='69.0', base='109')),
        ('mask_rcnn', 'coco', dict(tiny='47.9', small='69.3', base='109.2')),
        ('dino_4scale', 'coco', dict(tiny='47.8')),
        ('dino_5scale', 'coco', dict(tiny='48.1', small='69.6', base='110')),
    )
    for arch, number in numbers.items()
}


def read(name: str) -> Config:
    return Config.fromfile(ROOT / f'configs/{name}.py')


def name_of(path: Path) -> str:
    return f'{path.parts[1]}/{path.stem}'


every_config = pytest.mark.parametrize('path', CONFIGS, ids=name_of)
every_one = pytest.mark.parametrize('path', [*CONFIGS, *ABLATIONS], ids=name_of)


@every_one
def test_builds_as_many_parameters_as_the_metafile_states(path: Path) -> None:
    parameters = stated(path).get('Parameters (M)')
    number = sum(parameter.numel() for parameter in shared_model(parse(path)).parameters()) / 1e6
    if parameters is not None:
        decimals = len(str(parameters).partition('.')[2])
        assert f'{number:.{decimals}f}' == str(parameters)


@every_config
def test_heads_take_the_channels_of_the_backbone(path: Path) -> None:
    config, backbone = parse(path), shared_model(parse(path)).backbone
    module = config.model.get('decode_head') or config.model.get('panoptic_head') or config.model.get('head')
    if 'in_channels' in (config.model.get('neck') or {}):
        module = config.model.neck
    in_channels = module.in_channels if isinstance(module.in_channels, (list, tuple)) else (module.in_channels,)
    # mmdet's and mmseg's Swin and mmpretrain's ConvNeXt have the channels of their stages.
    names = ('out_channels', 'num_features', 'channels')
    assert tuple(in_channels) == tuple(next(filter(None, (getattr(backbone, name, None) for name in names))))


@pytest.mark.parametrize(
    'name',
    [
        'convit/mask_rcnn_tiny_coco',
        'pervit/upernet_tiny_ade20k',
        'gab/mask_rcnn_vit_small_coco',
        'vars/upernet_rvt_tiny_vars_sd_ade20k',
    ],
)
def test_depths_of_plain_backbones_for_layer_decay(name: str) -> None:
    model = shared_model(read(name))
    for parameter, _ in model.named_parameters():
        wanted = 0 if parameter.startswith('backbone.') else 13
        if block := re.match(r'backbone\.blocks\.(\d+)\.', parameter):
            wanted = 1 + int(block[1])
        elif parameter.startswith('backbone.pool.'):  # RVT-Ti's, before block 10
            wanted = 11
        elif parameter.startswith('backbone.norm.'):
            wanted = 13
        assert model.backbone.get_layer_depth(parameter, 'backbone.') == (wanted, 14)


@every_one
def test_says_where_its_weights_come_from(path: Path) -> None:
    """As the metafile does, and what the tools print where the file is missing."""
    config = parse(path)
    init_cfg = config.model.get('init_cfg') or config.model.backbone.get('init_cfg')
    comment = next(line for line in (ROOT / path).read_text().splitlines() if line.startswith('# Weights: '))
    assert (comment == '# Weights: random.') == (init_cfg is None)
    fetched = init_cfg is not None and init_cfg.checkpoint.startswith('https://')
    assert stated(path).get('Pretrained Weights') == (init_cfg.checkpoint if fetched else None)
    if init_cfg is None or 'trained with' in comment:  # the latter of a config for testing
        return
    unpublished = bool(re.search(r'deit_tiny|rvt[_-]tiny[_-](vars[_-]s|softmax|performer)_', path.stem))
    assert ('fetched when training starts' in comment) == ('weights_source' not in config) == fetched
    assert ('nobody publishes' in comment) == unpublished
    assert ('by hand' in comment) == (not fetched and not unpublished)


# What mmengine's Runner reads, what OpenMMLab's tools read (the data sets' names, the pipelines), and what this
# package's tools read: `tta_overrides`, `weights_source`.
KEYS = set(
    'model train_dataloader val_dataloader test_dataloader train_cfg val_cfg test_cfg val_evaluator test_evaluator '
    'optim_wrapper param_scheduler auto_scale_lr default_hooks custom_hooks default_scope env_cfg visualizer '
    'log_processor log_level load_from resume sync_bn '
    'dataset_type data_root train_pipeline test_pipeline tta_pipeline tta_model '
    'tta_overrides weights_source'.split()
)


def test_has_no_other_keys_than_those_of_a_run() -> None:
    assert not {name_of(path): set(parse(path)) - KEYS for path in CONFIGS if set(parse(path)) - KEYS}


@pytest.mark.parametrize('path', CONFIGS[::13], ids=name_of)
def test_a_dumped_config_is_the_config(path: Path, tmp_path: Path) -> None:
    parse(path).dump(tmp_path / 'config.py')
    assert Config.fromfile(tmp_path / 'config.py').to_dict() == parse(path).to_dict()


def test_labels_of_ade20k_begin_at_0_and_unlabelled_pixels_are_ignored(tmp_path: Path) -> None:
    """The data set says so, so that `LoadAnnotations` needs no (deprecated) `reduce_zero_label`."""
    init_default_scope('mmseg')
    for folder in ('images', 'annotations'):
        (tmp_path / folder / 'training').mkdir(parents=True)
    Image.new('RGB', (2, 2)).save(tmp_path / 'images/training/0.jpg')
    Image.fromarray(np.array([[0, 1], [150, 255]], np.uint8)).save(tmp_path / 'annotations/training/0.png')
    dataset = read('transnext/upernet_tiny_ade20k').train_dataloader.dataset
    dataset.update(data_root=str(tmp_path), pipeline=dataset.pipeline[:2])
    assert 'reduce_zero_label' not in dataset.pipeline[1]
    assert DATASETS.build(dataset)[0]['gt_seg_map'].tolist() == [[255, 0], [149, 255]]


def bases_of(path: Path) -> list[str]:
    """What a config names as its bases."""
    (bases,) = re.findall(r'^_base_ = (\[.*?\]|\'.*?\')', (ROOT / path).read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"'(.*?)'", bases)


def test_leaf_configs_repeat_nothing() -> None:
    """A leaf that restates a base's value would keep it when the base changes."""

    def leaves(node: dict, prefix: str = '') -> dict:
        flat = {}
        for key, value in node.items():
            if not isinstance(value, dict):
                flat[prefix + key] = value
            elif '_delete_' not in value:  # nothing is inherited below it
                flat.update(leaves(value, f'{prefix}{key}.'))
        return flat

    for path in CONFIGS:
        inherited = {}
        for base in bases_of(path):
            if '::' in base:  # a file of mmdet's
                inherited.update(Config.fromfile(Config._get_cfg_path(base, '')[0]).to_dict())
            else:
                inherited.update(parse(Path(normpath(path.parent / base))).to_dict())
        # What a config takes out of its bases, `_base_.pop('backbone')`, it does not restate.
        taken = {key: {} for key in ('backbone', 'custom_keys')}
        own = {'_base_': Config({**inherited, **taken})}
        text = (ROOT / path).read_text()
        exec(re.sub(r'^_base_ = (\[.*?\]|\'.*?\')$', '', text, flags=re.DOTALL | re.MULTILINE), own)
        del own['_base_'], own['__builtins__']
        inherited = leaves(inherited)
        repeated = {key for key, value in leaves(own).items() if key in inherited and inherited[key] == value}
        assert not repeated, f'{path} repeats {repeated}'


@pytest.mark.parametrize('path', ABLATIONS, ids=name_of)
def test_an_ablation_varies_a_backbone_and_nothing_else(path: Path) -> None:
    base, *backbones = bases_of(path)
    assert all(name.startswith('../../_base_/backbones/') for name in backbones)
    base = Path(normpath(path.parent / base))
    config, inherited = parse(path).to_dict(), parse(base).to_dict()
    varied, own = config['model'].pop('backbone'), inherited['model'].pop('backbone', None)
    # The same backbone has other data: the first classes of ImageNet, of ConViT's figure 8.
    has_other_data = config['train_dataloader'] != inherited['train_dataloader']
    assert varied != own or has_other_data
    # Another host, as DeiT of PerViT's table 2, has a recipe of its own, and a head of its width.
    if base.parent.name != 'recipes' and not has_other_data:
        assert base in CONFIGS or base in ABLATIONS
        for settings in (config, inherited):
            settings['model'].get('head', {}).pop('in_channels', None)
        assert config == inherited
    # The comment names the place in the paper.
    comment = (ROOT / path).read_text().replace('\n# ', ' ')
    assert re.search(r'\((TransNeXt|ConViT|PerViT|GAB|VARS), (table|fig\.|eq\.|section) \d+', comment)


def test_an_ablation_is_found_by_name() -> None:
    for path in ABLATIONS:
        for wanted in (str(path.with_suffix('')).removeprefix('configs/'), str(path), path.stem):
            assert Path(find_config(wanted)).samefile(ROOT / path)


def test_metafile_lists_every_config() -> None:
    for metafile in ROOT.glob('configs/*/metafile.yml'):
        folder = metafile.parent
        content, readme = yaml.safe_load(metafile.read_text()), (folder / 'README.md').read_text()
        assert (ROOT / content['Collections'][0]['README']).samefile(folder / 'README.md')
        listed = sorted(ROOT / model['Config'] for model in content['Models'])
        assert listed == sorted([*folder.glob('*.py'), *folder.glob('ablations/*.py')])
        for model in content['Models']:
            path, metadata = Path(model['Config']), model['Metadata']
            assert model['Name'] == f'{folder.name}_{path.stem}'
            (row,) = [line for line in readme.splitlines() if f'[{path.stem}]({"/".join(path.parts[2:])})' in line]
            if 'FLOPs (G)' in metadata:
                assert f'| {metadata["Parameters (M)"]} M |' in row and f'| {metadata["FLOPs (G)"]:.2f} G |' in row
            if folder.name == 'transnext' and path.stem in PARAMETERS:
                assert metadata['Parameters (M)'] == PARAMETERS[path.stem]


def test_the_thirteen_checkpoints_of_transnext() -> None:
    models = yaml.safe_load((ROOT / 'configs/transnext/metafile.yml').read_text())['Models']
    models = [model for model in models if 'Weights' in model]
    assert len({model['Weights'] for model in models}) == 13
    for model in models:
        name = re.search(r'/(\w+?)_(tiny|small|base)_(coco|ade)(20k)?(_ms)?.py', model['Config'])
        method, size, data = name.groups()[:3]
        folder = f'{method.replace("mask_rcnn", "maskrcnn").replace("_", "-")}-transnext-{size}-{data}'
        for url in (model['Weights'], model['Training Log']):
            assert url.startswith(f'https://huggingface.co/DaiShiResearch/{folder}/')
            assert f'/{method}_transnext_{size}_' in url


@torch.no_grad()
def test_classifiers_with_windows_take_miniature_images() -> None:
    config = make_mini(read('gab/gabswin-small_8xb128_in1k'))
    init_default_scope(config.default_scope)
    config.model.backbone.arch = dict(embed_dims=8, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1))
    size = config.test_dataloader.dataset.pipeline[2].crop_size
    assert size < 7 * 32
    assert MODELS.build(config.model.backbone)(torch.randn(1, 3, size, size))[0].shape[1] == 64


@pytest.mark.every_config
@pytest.mark.parametrize('path', [path for path in (*CONFIGS, *ABLATIONS) if '_in1k' in path.stem], ids=name_of)
def test_metafile_states_the_multiply_adds(path: Path) -> None:
    config = parse(path)
    measured = multiply_adds(Network(config), random_image(default_size(config)))
    assert f'{measured["flops"] / 1e9:.2f}' == f'{stated(path)["FLOPs (G)"]:.2f}'
