"""docs/any_model.md: the configs of mmdet and mmseg with our backbones, as the page has them, learn and predict."""

from pathlib import Path

import pytest
from mmengine.registry import MODELS

from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.start import forget_initial_weights
from tests.docs.blocks import Block, read_blocks
from tests.hosts.inputs import after_a_step, check_predictions, inputs_for

BLOCKS = [block for block in read_blocks('docs/any_model.md') if block.language == 'python']
# The others inherit a config of this package.
CONFIGS = [block for block in BLOCKS if not block.file.startswith('configs/')]
# The others are in `make test-all`.
QUICK = ('rtmdet.py', 'semantic_fpn.py')
SLOW = ('faster_rcnn_convit.py', 'cascade_rcnn_dinov2.py', 'pspnet_convnext.py')


def case(block: Block) -> pytest.param:
    marks = () if block.file in QUICK else getattr(pytest.mark, 'slow' if block.file in SLOW else 'every_config')
    return pytest.param(block, id=block.file, marks=marks)


@pytest.mark.parametrize('block', map(case, CONFIGS))
def test_learns_and_predicts(block: Block, tmp_path: Path) -> None:
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
