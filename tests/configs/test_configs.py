"""Every config: parses, builds, has the stated size, and states only what differs; so do those of ablations."""

import re
from os.path import normpath
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config

from bioattn_mm.analysis.model_stats import Network, default_size, multiply_adds, random_image

from .reading import ABLATIONS, CONFIGS, ROOT, parse, shared_model, stated


def name_of(path: Path) -> str:
    return f'{path.parts[1]}/{path.stem}'


every_config = pytest.mark.parametrize('path', CONFIGS, ids=name_of)
every_one = pytest.mark.parametrize('path', [*CONFIGS, *ABLATIONS], ids=name_of)


@every_one
def test_builds_as_many_parameters_as_the_metafile_states(path: Path) -> None:
    parameters = stated()[path].get('Parameters (M)')
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


@every_one
def test_says_where_its_weights_come_from(path: Path) -> None:
    """As the metafile does, and what the tools print where the file is missing."""
    config = parse(path)
    init_cfg = config.model.get('init_cfg') or config.model.backbone.get('init_cfg')
    comment = next(line for line in (ROOT / path).read_text().splitlines() if line.startswith('# Weights: '))
    assert (comment == '# Weights: random.') == (init_cfg is None)
    fetched = init_cfg is not None and init_cfg.checkpoint.startswith('https://')
    assert stated()[path].get('Pretrained Weights') == (init_cfg.checkpoint if fetched else None)
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
        for base in bases_of(path):  # of mmdet's, too
            inherited.update(parse(Path(Config._get_cfg_path(base, str(ROOT / path))[0])).to_dict())
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


@pytest.mark.every_config
@pytest.mark.parametrize('path', [path for path in (*CONFIGS, *ABLATIONS) if '_in1k' in path.stem], ids=name_of)
def test_metafile_states_the_multiply_adds(path: Path) -> None:
    config = parse(path)
    measured = multiply_adds(Network(config), random_image(default_size(config)))
    assert f'{measured["flops"] / 1e9:.2f}' == f'{stated()[path]["FLOPs (G)"]:.2f}'
