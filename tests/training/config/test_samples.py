"""What `--balance-classes` and `--fraction` make of a config."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.samples import set_fraction, weigh_classes

from ...own_folders import write_images, write_mask_folder

SEGMENTOR = 'transnext/upernet_micro_ade20k'


def read(folder: Path, name: str = SEGMENTOR, **options) -> Config:
    data = DataArguments(str(folder))
    return load_config(name, data=data, mini=True, balance=True, dataloaders=('train_dataloader',), **options)


def test_the_loss_weighs_pixels_by_median_frequency(tmp_path: Path) -> None:
    folder, seeds = tmp_path / 'scenes', range(0, 12, 6)  # of images of one size
    table, bolt, nut, ignored = 0, 1, 2, 255
    half, corner = np.full((96, 120), table, np.uint8), np.full((96, 120), ignored, np.uint8)
    half[:, 60:] = bolt
    corner[:48] = table
    corner[:12, :60] = nut  # an eighth of the pixels that count
    for split in ('train', 'val'):
        write_images(folder / 'images' / split, seeds)
        (folder / 'masks' / split).mkdir(parents=True)
        for seed, labels in zip(seeds, (half, corner if split == 'train' else half)):
            Image.fromarray(labels).save(folder / f'masks/{split}/part_{seed:03d}.png')
    (folder / 'classes.txt').write_text('table\nbolt\nnut\nscrew\n')
    # Options of the loss do not undo it.
    options = {'model.decode_head.loss_decode.avg_non_ignore': True}
    config = read(folder, cfg_options=options, epochs=2)
    # The share of a class is of the pixels that count in the images that show it. All 96 * 120 pixels of the first
    # image count, and half as many of the second.
    shares = np.array([(1 / 2 + 7 / 8 / 2) / (1 + 1 / 2), 1 / 2, 1 / 8])
    assert 'avg_non_ignore' not in config.model.decode_head.loss_decode
    weights = config.model.decode_head.loss_decode.class_weight
    assert config.model.auxiliary_head.loss_decode.class_weight == weights
    np.testing.assert_allclose(weights, [*(np.median(shares) / shares), 1], rtol=1e-3)  # of no screw
    assert config.class_balance.endswith('4 (nut)')


def test_what_has_no_pixels_to_weigh(tmp_path: Path, root: Path) -> None:
    folder = write_mask_folder(tmp_path / 'scenes', range(4))
    with pytest.raises(InputError, match=r'mask2former_micro_ade20k.py have none over several classes'):
        read(folder, 'transnext/mask2former_micro_ade20k')
    config = load_config(SEGMENTOR, data=DataArguments(str(folder)), mini=True)
    for path in (folder / 'masks').iterdir():
        path.write_bytes(b'cut')
    with pytest.raises(InputError, match='no label map of the training can be read and has any'):
        weigh_classes(config)
    for head in (config.model.decode_head, config.model.auxiliary_head):
        head.loss_decode.use_sigmoid = True
    with pytest.raises(InputError, match='weighs the cross entropy of pixels'):
        weigh_classes(config)


def test_a_fraction_of_the_images_for_as_many_more_epochs(root: Path) -> None:
    classifier = Config.fromfile(root / 'configs/transnext/transnext-micro_8xb128_in1k.py')
    dataset, by_iterations = classifier.train_dataloader.dataset, copy.deepcopy(classifier)
    classifier.param_scheduler += [
        dict(type='LinearLR', by_epoch=False, begin=0, end=500),
        dict(type='MultiStepLR', milestones=[30, 60, 90]),
        dict(type='StepLR', step_size=30, begin=5, end=math.inf),
    ]
    set_fraction(classifier, 0.3)
    expected = dict(type='bioattn_mm.class_balanced_part', fraction=0.3, dataset=dataset)
    assert classifier.train_dataloader.dataset == expected
    assert 'class_balanced_part' not in str(classifier.val_dataloader)
    assert classifier.train_cfg.max_epochs == 1000
    # As often validated and saved as in the whole training.
    assert classifier.train_cfg.val_interval == classifier.default_hooks.checkpoint.interval == 3
    warm_up, cosine, iterations, steps, step = classifier.param_scheduler
    assert [(each.begin, each.end) for each in (warm_up, cosine, iterations)] == [(0, 17), (17, 1000), (0, 500)]
    assert steps.milestones == [100, 200, 300]
    assert (step.step_size, step.begin, step.end) == (100, 17, math.inf)

    by_iterations.train_cfg = dict(type='IterBasedTrainLoop', max_iters=200, val_interval=100)
    by_iterations.param_scheduler = [dict(type='PolyLR', by_epoch=False, begin=0, end=200)]
    set_fraction(by_iterations, 0.5)
    assert (by_iterations.train_cfg.max_iters, by_iterations.train_cfg.val_interval) == (200, 100)
    assert by_iterations.param_scheduler[0].end == 200
