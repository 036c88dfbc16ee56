"""What `--balance-classes` makes of a config."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS
from PIL import Image

from bioattn_mm.errors import InputError
from bioattn_mm.run_config.balance import balance_classes, class_weights
from bioattn_mm.run_config.config import load_config
from bioattn_mm.run_config.own_data import DataArguments

from ..own_folders import write_coco_folder, write_images, write_mask_folder

DETECTOR = 'transnext/mask_rcnn_micro_coco'
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
    assert config.train_dataloader.dataset.type != 'ClassBalancedDataset'
    assert config.model.auxiliary_head.loss_decode.class_weight == weights
    np.testing.assert_allclose(weights, np.median(shares) / shares, rtol=1e-3)
    assert config.class_balance.endswith('4 (nut)')

    loss = MODELS.build(config.model.decode_head.loss_decode)  # mmseg's, which divides by the sum of the weights
    logits, labels = torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8))
    expected = torch.nn.functional.cross_entropy(logits, labels, torch.tensor(weights))
    torch.testing.assert_close(loss(logits, labels), expected)


def test_a_detector(tmp_path: Path) -> None:
    folder = write_coco_folder(tmp_path / 'parts', range(10))
    path = folder / 'annotations.json'
    content = json.loads(path.read_text())
    (folder / 'val.json').write_text(path.read_text())
    for annotation in content['annotations']:
        annotation['category_id'] = 2
    first = content['images'][0]['id']
    of_first = [each for each in content['annotations'] if each['image_id'] == first]
    of_first[0]['category_id'] = 7  # one image in ten shows a nut
    path.unlink()
    (folder / 'train.json').write_text(json.dumps(content))
    key = 'train_dataloader.dataset.pipeline.2.keep_ratio'
    config = read(DETECTOR, folder, epochs=2, cfg_options={key: False})
    dataset = config.train_dataloader.dataset
    # Two classes, in 10 and 1 of 10 images: the threshold is half of the median, 0.55 / 2, and sqrt(0.275 / 0.1) is
    # rounded up to 2.
    assert (dataset.type, dataset.oversample_thr) == ('ClassBalancedDataset', 0.275)
    assert dataset.dataset.pipeline[2].keep_ratio is False
    assert config.class_balance == (
        'images with rare classes come more often: 11 steps through 10 images in an epoch'
    )
    built = DATASETS.build(dataset)
    shown = [built.get_data_info(index)['img_id'] for index in range(len(built))]
    assert sorted(shown) == sorted([entry['id'] for entry in content['images']] + [first])
    assert built[0]['inputs'].ndim == 3
    # The schedule is of 2 epochs of 6 steps of 2 images.
    assert config.param_scheduler[-1].end == 12


def test_a_classifier(tmp_path: Path) -> None:
    for name, number in (('oak', 8), ('ash', 8), ('elm', 2)):
        write_images(tmp_path / 'leaves/train' / name, range(number))
        write_images(tmp_path / 'leaves/val' / name, range(2))
    config = read('transnext/transnext-micro_8xb128_in1k', tmp_path / 'leaves')
    labels = [DATASETS.build(config.train_dataloader.dataset).get_cat_ids(index)[0] for index in range(20)]
    assert np.bincount(labels).tolist() == [8, 4, 8]


def test_the_config_of_a_balanced_run(tmp_path: Path) -> None:
    for leaves, elms in (('leaves', 2), ('others', 4)):  # half as many as the other classes are not fewer than half
        for name, number in (('oak', 8), ('ash', 8), ('elm', elms), ('fir', 8)):
            write_images(tmp_path / leaves / 'train' / name, range(number))
            write_images(tmp_path / leaves / 'val' / name, range(2))
    first = read('transnext/transnext-micro_8xb128_in1k', tmp_path / 'leaves')
    assert first.train_dataloader.dataset.type == 'ClassBalancedDataset'
    again = load_config(first, balance=True, dataloaders=('train_dataloader',))
    assert again.train_dataloader == first.train_dataloader
    for balance in (True, False):  # the threshold of the first data is not that of the others
        other = load_config(
            first, data=DataArguments(str(tmp_path / 'others')), balance=balance, dataloaders=('train_dataloader',)
        )
        assert other.train_dataloader.dataset.type == 'BaseDataset'


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
        balance_classes(config)


def test_equal_classes_stay(tmp_path: Path) -> None:
    for name in ('oak', 'ash'):
        write_images(tmp_path / 'leaves/train' / name, range(4))
        write_images(tmp_path / 'leaves/val' / name, range(2))
    config = read('transnext/transnext-micro_8xb128_in1k', tmp_path / 'leaves')
    assert config.train_dataloader.dataset.type != 'ClassBalancedDataset'
    assert config.class_balance.endswith('no image comes more often')


def test_models_without_weights_of_pixels(tmp_path: Path, root: Path) -> None:
    write_mask_folder(tmp_path / 'scenes', range(3))
    with pytest.raises(InputError, match=r'mask2former_micro_ade20k.py have none over several classes'):
        read('transnext/mask2former_micro_ade20k', tmp_path / 'scenes')
    config = Config.fromfile(root / 'configs' / f'{SEGMENTOR}.py')
    for head in (config.model.decode_head, config.model.auxiliary_head):
        head.loss_decode.use_sigmoid = True
    with pytest.raises(InputError, match='weighs the cross entropy of pixels'):
        balance_classes(config)
