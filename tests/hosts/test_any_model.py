"""docs/any_model.md: mmdet's and mmseg's configs with our backbones learn and predict.

Of each family that the page names, one config runs: backbone and channels are exchanged, and there are fewer
proposals and queries, for speed; all else is the library's. `make test-peers` runs these, and `make test-all`.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import MessageHub
from mmengine.registry import MODELS
from mmengine.structures import PixelData

from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import as_list
from bioattn_mm.training.start import forget_initial_weights
from tests.conftest import ROOT
from tests.docs.blocks import Block, read_blocks
from tests.hosts.inputs import after_a_step, check_predictions, inputs_for
from tests.systems.common.small_backbones import CASES

BLOCKS = [block for block in read_blocks('docs/any_model.md') if block.language == 'python']
# The others inherit a config of this package.
CONFIGS = [block for block in BLOCKS if not block.file.startswith('configs/')]
# The others are in `make test-all`.
QUICK = ('rtmdet.py', 'semantic_fpn.py')
SLOW = ('faster_rcnn_convit.py', 'cascade_rcnn_dinov2.py', 'pspnet_convnext.py')
SIZE = (64, 96)  # of the images; RTMDet and YOLOX take multiples of 32
STRIDES = (4, 8, 16, 32)
# Channels of the pyramid of a plain backbone.
WIDTH = 32
ROWS = re.findall(r'^\| `(\w+)` \| ([a-z].*) \| ([a-z].*) \|$', (ROOT / 'docs/any_model.md').read_text(), re.M)
FAMILIES = [
    (library, family, system)
    for system, *cells in ROWS
    for library, cell in zip(('mmdet', 'mmseg'), cells)
    for family in cell.split(', ')
]
# Under these, each system runs.
FAMILIES += [('mmdet', family, system) for family in ('rtmdet', 'dino', 'dyhead') for system, *_ in ROWS]


def config_of(library: str, family: str) -> str:
    """The plainest config of a family with the smallest backbone, which needs no data that others do not need."""
    (package,) = find_spec(library).submodule_search_locations
    names = [path.stem for path in Path(package, '.mim/configs', family).glob('*.py')]
    names = [name for name in names if re.search('_(r50|hr18|mit-b0|tiny).*_(coco|ade20k|cityscapes)', name)]

    def rank(name: str) -> tuple:
        wanted = ('without-semantic|libra-faster|-light|twostage', '_1x_|ade20k', '160k')
        return *(not re.search(words, name) for words in wanted), len(name), name

    return f'{library}::{family}/{min(names, key=rank)}.py'


def test_the_page_names_families_of_five_backbones() -> None:
    assert len(ROWS) == 5 and len(FAMILIES) > 60


def case(block: Block) -> pytest.param:
    marks = () if block.file in QUICK else getattr(pytest.mark, 'slow' if block.file in SLOW else 'every_config')
    return pytest.param(block, id=block.file, marks=marks)


@pytest.mark.parametrize('block', map(case, CONFIGS))
def test_a_config_of_the_page_learns_and_predicts(block: Block, tmp_path: Path) -> None:
    (tmp_path / block.file).write_text(block.text)
    config = load_config(str(tmp_path / block.file))
    forget_initial_weights(config.model)
    size = (64, 96) if block.file == 'rtmdet.py' else (72, 104)  # RTMDet's config pads to multiples of 32
    model = after_a_step(config, inputs_for(config, size))
    assert type(model.backbone).__module__.startswith('bioattn_mm.')
    # What the model reads of the backbone, and no stage without a gradient.
    assert [name for name, parameter in model.backbone.named_parameters() if parameter.grad is None] == []
    check_predictions(model, inputs_for(config, size), size)


def test_another_variant(root: Path, tmp_path: Path) -> None:
    (block,) = (block for block in BLOCKS if block not in CONFIGS)
    folder = (root / block.file).parent
    text = block.text.replace("'./", f"'{folder}/").replace("'../", f"'{folder.parent}/")
    (tmp_path / 'variant.py').write_text(text)
    config = load_config(str(tmp_path / 'variant.py'))
    with on_meta():
        backbone = MODELS.build({**config.model.backbone, 'init_cfg': None})
    assert backbone.out_channels == (config.model.neck.in_channels,)
    assert config.model.neck.type == 'bioattn_mm.SimpleFeaturePyramid' and config.model.type == 'MaskRCNN'


@pytest.mark.every_config
@pytest.mark.parametrize(('library', 'family', 'system'), FAMILIES)
def test_a_config_of_each_family_learns_and_predicts(
    library: str, family: str, system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'config.py').write_text(f'_base_ = {config_of(library, family)!r}')
    config = load_config(str(tmp_path / 'config.py'))
    exchange_backbone(config.model, system)
    few_proposals(config.model)
    for key in ('epoch', 'iter'):  # which TOOD and YOLOX ask for
        monkeypatch.setitem(MessageHub.get_current_instance().runtime_info, key, 0)
    model = after_a_step(config, annotated(config))
    assert type(model.backbone).__module__.startswith('bioattn_mm.')
    gradients = [parameter.grad for parameter in model.backbone.parameters() if parameter.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)
    check_predictions(model, annotated(config), SIZE)


def exchange_backbone(model: ConfigDict, system: str) -> None:
    """Give a model a narrow backbone, after it a pyramid if it is plain, and the channels to what follows."""
    case = CASES[system]
    (neck, *others) = as_list(model.get('neck')) or [None]
    want = neck.in_channels if neck else None
    strides = STRIDES if neck is None else STRIDES[-len(as_list(want)) :] if isinstance(want, list) else STRIDES[-1:]
    plain = case.num_stages == 12
    indices = (11,) if plain else tuple(STRIDES.index(stride) for stride in strides)
    model.backbone = dict(type=f'bioattn_mm.{system}', arch=case.arch, out_indices=indices, **case.options)
    model.pop('pretrained', None)
    model.init_cfg = None
    channels = [WIDTH] * len(strides) if plain else [case.out_channels[index] for index in indices]
    if neck is not None:
        neck.in_channels = channels if isinstance(want, list) else channels[-1]
        neck.update(dict(start_level=0) if neck.get('start_level', 0) >= len(channels) else {})
    if plain:
        pyramid = dict(type='bioattn_mm.SimpleFeaturePyramid', in_channels=case.out_channels[-1], out_channels=WIDTH)
        pyramid['scales'] = [16 / stride for stride in strides]
        model.neck = [pyramid, *([neck, *others] if neck else [])]
    if neck is None:
        for key in ('decode_head', 'auxiliary_head', 'panoptic_head'):
            for head in as_list(model.get(key)):
                set_channels(head.get('kernel_generate_head', head), channels)


def set_channels(head: ConfigDict, channels: list[int]) -> None:
    """Tell a head of mmseg, which reads the maps itself, their channels."""
    index = head.get('in_index', -1)
    if isinstance(head.in_channels, list) and isinstance(index, int):  # Mask2Former reads all
        index = list(range(len(channels)))
    head.in_channels = channels[index] if isinstance(index, int) else [channels[i] for i in index]
    if 'c1_in_channels' in head:
        head.c1_in_channels = channels[0]


def few_proposals(node: object) -> None:
    """Let RPNs give 20 proposals, for speed, and transformers 50 queries, of which small images have no more."""
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        few_proposals(child)
    for key, value in dict(nms_pre=100, max_per_img=20, num_queries=50).items():
        if isinstance(node, dict) and key in node:
            node[key] = value


def annotated(config: Config) -> dict:
    """Images with boxes, masks and, for panoptic models, classes of the pixels."""
    masks = re.search(r"'with_mask': True|LoadPanoptic", str(config.train_dataloader))
    inputs = inputs_for(config, SIZE, with_mask=bool(masks))
    for sample in inputs['data_samples']:
        if config.default_scope == 'mmdet':
            sample.gt_sem_seg = PixelData(sem_seg=torch.randint(2, (1, *SIZE)))
            sample.set_metainfo(dict(batch_input_shape=SIZE, pad_shape=SIZE))
    return inputs
