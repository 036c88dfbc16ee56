"""What the tools of analysis refuse, in one line."""

from pathlib import Path

import pytest

from ..tools.running import ROOT, InProcess
from .small_backbones import ON_CPU, write_config

ERF, MAPS, LOCALITY, SEGMENTATION, STATS = (
    f'analysis/{name}.py' for name in ('erf', 'attention_maps', 'locality', 'attention_segmentation', 'model_stats')
)
GABVIT = 'gabvit.py'
UPERNET = ROOT / 'tests/tools/upernet_small.py'
IN_SIZE = ('--size', 64, 64)
ON_IMAGES = ('--images', 'data', *IN_SIZE)
ON_MASKS = ('--images', 'data', '--masks', 'masks')
ROWS = [
    (ERF, ('--timm', 'swin_tiny_patch4_window7_225'), 'did you mean swin_tiny_patch4_window7_224'),
    (ERF, ('--timm', 'test_vit'), 'names no folder of validation images: name one with --images'),
    (ERF, ('--timm', 'test_vit.in99k', *ON_IMAGES), 'error: timm has no such weights: '),
    (ERF, ('--timm', 'a', 'b', 'c'), '--timm takes the name of a model and a checkpoint, got 3 words: a b c'),
    (ERF, ('--timm', 'test_resnet', '--reinit-position', *ON_IMAGES), 'has no position embeddings'),
    (ERF, (GABVIT, '--output', 4), '--output must be -2 to 1 in this model, got 4'),
    (ERF, (GABVIT, '--corrupt', 'fog'), 'takes a name and a severity, such as gaussian_noise:3, got fog'),
    (ERF, (GABVIT, '--corrupt', 'rain:1'), "got 'rain'"),
    (ERF, (GABVIT, '--epsilon', '1/255'), '--epsilon is an option of --attack: add that'),
    (ERF, (GABVIT, 'pretrained'), f"'pretrained' stands for the weights of timm: name a file for {GABVIT}"),
    (ERF, (GABVIT, '--attack', 'fgsm', *IN_SIZE), f'can be attacked: {GABVIT} is'),
    (ERF, ('resnet.py', *IN_SIZE), "unexpected keyword argument 'arch'"),
    (MAPS, (GABVIT, '--layer', 12), '--layer must be -3 to 2 in this model, got 12'),
    (MAPS, (GABVIT, '--query', 40, 3), 'image_0.png, 40 x 60, got 40 3'),
    (MAPS, (GABVIT, '--part', 'window'), '--part must be one of attention, Gaussian, content, position in this'),
    (MAPS, (GABVIT, '--part', 'window', '--layer', 0, 1), '--part must be one of attention, Gaussian, content'),
    (MAPS, (GABVIT, '--part', 'window', '--corrupt', 'fog:1'), '--part must be one of attention, Gaussian, content'),
    (MAPS, (GABVIT, '--heads', 0, 2), '--heads must be 0 to 1 in this layer, got 0 2'),
    (MAPS, ('--timm', 'test_resnet', *ON_IMAGES), 'test_resnet has no attention layer that can be'),
    (LOCALITY, (), 'name a config, or a model of timm with --timm'),
    (LOCALITY, (GABVIT, '--images', 'absent'), 'no image or folder of images at absent: name one with --images'),
    (SEGMENTATION, (GABVIT, '--threshold', 1), '--threshold must be at least 0 and below 1, got 1'),
    (SEGMENTATION, (GABVIT, '--split', 'names.txt'), '--split chooses from --images, which is not there'),
    (SEGMENTATION, (GABVIT, '--masks', 'masks'), '--images goes together with --masks or --fixations, and without'),
    (SEGMENTATION, (GABVIT, *ON_MASKS, '--fixations', 'x'), '--masks and --fixations are two measurements: leave'),
    (SEGMENTATION, (GABVIT, *ON_MASKS[:3], 'absent'), 'no label map for data/images/image_0.png: expected absent/'),
    (STATS, (UPERNET, '--cfg-options', 'default_scope=mmpose'), 'one of mmdet, mmseg, mmpretrain, or add --backbone'),
    (STATS, ('whole.py',), 'whole.py has no model with a backbone'),
    (STATS, ('masks',), 'there are no configs in the folder masks: expected files such as NAME.py'),
]


@pytest.mark.parametrize(('path', 'args', 'message'), ROWS)
@pytest.mark.usefixtures('images')
def test_refuses_in_one_line(path: str, args: tuple, message: str, tmp_path: Path, tool: InProcess) -> None:
    config = write_config(tmp_path, 'GABViT')
    (tmp_path / 'resnet.py').write_text(config.read_text().replace('bioattn_mm.GABViT', 'mmdet.ResNet'))
    whole = f"_base_ = '{UPERNET}'\nmodel = dict(_delete_=True, type='TimmClassifier')"
    (tmp_path / 'whole.py').write_text(whole)
    (tmp_path / 'masks').mkdir()
    line = tool.refused(tmp_path, path, *args, '--out', 'out', *(() if path == STATS else ON_CPU))
    assert line.startswith('error: ') and message in line
