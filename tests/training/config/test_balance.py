"""What `--balance-classes` makes of a config."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.samples import class_weights, weigh_classes

from ...own_folders import write_images, write_mask_folder

SEGMENTOR = 'transnext/upernet_micro_ade20k'


def read(name: str, folder: Path, **options) -> Config:
    data = DataArguments(str(folder))
    return load_config(name, data=data, mini=True, balance=True, dataloaders=('train_dataloader',), **options)


def test_weights_by_median_frequency() -> None:
    # Two images of 100 pixels: 90 and 10 of the first two classes, 50 and 50 of the first and the third.
    weights = class_weights(np.array([140, 10, 50, 0]), np.array([200, 100, 100, 0]))
    assert weights == [0.7143, 5, 1, 1]


def test_a_segmentor(tmp_path: Path) -> None:
    folder, seeds = tmp_path / 'scenes', range(0, 12, 6)  # of images of one size
    for split in ('train', 'val'):
        write_images(folder / 'images' / split, seeds)
        (folder / 'masks' / split).mkdir(parents=True)
    (folder / 'classes.txt').write_text('table\nbolt\nnut\n')
    table, bolt, nut, ignored = 0, 1, 2, 255
    half = np.full((96, 120), table, np.uint8)
    half[:, 60:] = bolt
    corner = np.full((96, 120), ignored, np.uint8)
    corner[:48] = table
    corner[:12, :60] = nut  # an eighth of the pixels that count
    for seed, labels in zip(seeds, (half, corner)):
        Image.fromarray(labels).save(folder / f'masks/train/part_{seed:03d}.png')
        Image.fromarray(half).save(folder / f'masks/val/part_{seed:03d}.png')
    config = read(SEGMENTOR, folder)
    # The share of a class is of the pixels that count in the images that show it. All 96 * 120 pixels of the first
    # image count, and half as many of the second.
    shares = np.array([(1 / 2 + 7 / 8 / 2) / (1 + 1 / 2), 1 / 2, 1 / 8])
    weights = config.model.decode_head.loss_decode.class_weight
    assert config.model.auxiliary_head.loss_decode.class_weight == weights
    np.testing.assert_allclose(weights, np.median(shares) / shares, rtol=1e-3)
    assert config.class_balance.endswith('4 (nut)')

    loss = MODELS.build(config.model.decode_head.loss_decode)  # mmseg's, which divides by the sum of the weights
    logits, labels = torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8))
    expected = torch.nn.functional.cross_entropy(logits, labels, torch.tensor(weights))
    torch.testing.assert_close(loss(logits, labels), expected)


def test_options_of_the_loss_do_not_undo_it(tmp_path: Path) -> None:
    folder = write_mask_folder(tmp_path / 'scenes', range(4))
    options = {'model.decode_head.loss_decode.avg_non_ignore': True}
    for epochs in (None, 2):
        loss = read(SEGMENTOR, folder, cfg_options=options, epochs=epochs).model.decode_head.loss_decode
        assert loss.class_weight and 'avg_non_ignore' not in loss


def test_label_maps_without_labels(tmp_path: Path) -> None:
    folder = write_mask_folder(tmp_path / 'scenes', range(4))
    config = load_config(SEGMENTOR, data=DataArguments(str(folder)), mini=True)
    for path in (folder / 'masks').iterdir():
        path.write_bytes(b'cut')
    with pytest.raises(InputError, match='no label map of the training can be read and has any'):
        weigh_classes(config)


def test_models_without_weights_of_pixels(tmp_path: Path, root: Path) -> None:
    write_mask_folder(tmp_path / 'scenes', range(3))
    with pytest.raises(InputError, match=r'mask2former_micro_ade20k.py have none over several classes'):
        read('transnext/mask2former_micro_ade20k', tmp_path / 'scenes')
    config = Config.fromfile(root / 'configs' / f'{SEGMENTOR}.py')
    for head in (config.model.decode_head, config.model.auxiliary_head):
        head.loss_decode.use_sigmoid = True
    with pytest.raises(InputError, match='weighs the cross entropy of pixels'):
        weigh_classes(config)
