"""Data sets of classifiers in their published layout, small ones drawn here, and the configs that take them."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image
from scipy.io import savemat

from bioattn_mm.data.classification import DOMAINS, PACS, RandomPart, StanfordDogs
from bioattn_mm.errors import InputError
from bioattn_mm.registry import MODELS
from bioattn_mm.systems.gab import GABViT
from bioattn_mm.training.config.data_check import check_data
from tests.configs.reading import ROOT


def draw(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (70, 50)).save(path)


def dogs(root: Path) -> None:
    files = {'train': ['n1-Shih-Tzu/a.jpg', 'n2-African_dog/b.jpg'], 'test': ['n2-African_dog/c.jpg']}
    for split, names in files.items():
        labels = [1, 2] if split == 'train' else [2]
        content = dict(file_list=np.array(names, object)[:, None], labels=np.array(labels)[:, None])
        savemat(root / f'{split}_list.mat', content, do_compression=True)
        for name in names:
            draw(root / 'Images' / name)


def pet(root: Path) -> None:
    for split, line in (('trainval', 'Abyssinian_1 1 1 1'), ('test', 'Bengal_2 6 1 2')):
        (root / 'annotations').mkdir(exist_ok=True)
        (root / f'annotations/{split}.txt').write_text(f'{line}\n')
        draw(root / f'images/{line.split()[0]}.jpg')


def caltech101(root: Path) -> None:
    for split, line in (('train', 'accordion/image_0001.jpg 5'), ('test', 'yin_yang/image_0002.jpg 101')):
        (root / 'meta').mkdir(exist_ok=True)
        (root / f'meta/{split}.txt').write_text(f'{line}\n')
        draw(root / '101_ObjectCategories' / line.split()[0])


def cars(root: Path) -> None:
    for split, name in (('train', 'cars_train_annos'), ('test', 'cars_test_annos_withlabels')):
        (root / 'devkit').mkdir(exist_ok=True)
        content = [('00001.jpg', 14), ('00002.jpg', 196)]
        savemat(root / f'devkit/{name}.mat', dict(annotations=np.array(content, [('fname', object), ('class', int)])))
        for image, _ in content:
            draw(root / f'cars_{split}' / image)


def pacs(root: Path) -> None:
    for domain in DOMAINS:
        for name in PACS.CLASSES:
            draw(root / domain / name / 'pic.jpg')


# Labels of the training and the test images.
LABELS = dict(dogs=([0, 1], [1]), pet=([0], [5]), caltech101=([5], [101]), cars=([13, 195], [13, 195]))


@pytest.mark.parametrize('name', LABELS)
def test_configs_read_the_published_layout(name: str, tmp_path: Path) -> None:
    globals()[name](tmp_path)
    config = Config.fromfile(ROOT / f'configs/gab/ablations/gabvit-small_1xb64_{name}.py')
    init_default_scope(config.default_scope)
    published = config.train_dataloader.dataset
    for part, wanted in zip(published.parts, LABELS[name], strict=True):
        dataset = DATASETS.build({**part, 'data_root': str(tmp_path)})
        assert [int(dataset[index]['gt_label']) for index in range(len(dataset))] == wanted
    if name == 'dogs':
        assert StanfordDogs(str(tmp_path)).metainfo['classes'] == ('Shih-Tzu', 'African_dog')  # names of the folders
        with pytest.raises(InputError, match=r'no file .*val_list.mat: unpack lists.tar'):
            StanfordDogs(str(tmp_path), 'val')
    else:
        assert len(dataset.metainfo['classes']) == config.model.head.num_classes
    number = int(0.7 * sum(map(len, LABELS[name])))
    images = DATASETS.build({**published, 'data_root': str(tmp_path)})
    assert [sample['inputs'].shape for sample in images] == [(3, 224, 224)] * number
    assert all(config[f'{kind}_dataloader'].dataset.split == kind for kind in ('train', 'val', 'test'))


@pytest.mark.parametrize('name', ['vit-relpos-small', 'gabvit-small'])
def test_gab_table_3_starts_from_the_host_but_its_position_bias(name: str, tmp_path: Path) -> None:
    small = dict(arch=dict(embed_dims=32, num_layers=2, num_heads=2), out_indices=(1,))
    host = GABViT(**small, out_type='avg_featmap', amplitude=0.0).state_dict()
    torch.save({key: value for key, value in host.items() if '.gaussian.' not in key}, tmp_path / 'host.pth')
    config = Config.fromfile(ROOT / f'configs/gab/ablations/{name}_1xb64_pet.py').model.backbone
    backbone = MODELS.build(
        {**config, **small, 'init_cfg': dict(config.init_cfg, checkpoint=str(tmp_path / 'host.pth'))}
    )
    backbone.init_weights()
    others = {key for key, value in backbone.state_dict().items() if not value.equal(host[key])}
    assert {key for key in others if '.gaussian.' not in key} == {key for key in host if '.rel_pos.mlp.' in key}


@pytest.mark.parametrize(
    'name', ['vars/ablations/rvt-tiny-vars-d_1xb64_pacs', 'transnext/ablations/transnext-2m_8xb128_cifar100']
)
def test_split_is_a_folder_of_imagenet_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.fromfile(ROOT / f'configs/{name}.py')
    (tmp_path / config.train_dataloader.dataset.data_root).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    check_data(config, ('train_dataloader', 'val_dataloader', 'test_dataloader'))


def test_random_parts_are_apart(tmp_path: Path) -> None:
    pacs(tmp_path)
    parts = [dict(type='bioattn_mm.PACS', target='photo', split=split) for split in ('train', 'test')]
    datasets = [RandomPart(str(tmp_path), parts, split) for split in ('train', 'val', 'test')]
    found = [{sample['img_path'] for sample in dataset} for dataset in datasets]
    assert list(map(len, found)) == [19, 4, 4]  # of 28, as in the authors' script without the rest
    assert len(set.union(*found)) == 27 and [dataset.test_mode for dataset in datasets] == [False, True, True]


def test_first_classes_of_imagenet(tmp_path: Path) -> None:
    for name in ('a', 'b', 'c'):
        draw(tmp_path / f'train/{name}.jpg')
    (tmp_path / 'meta').mkdir()
    (tmp_path / 'meta/train.txt').write_text('a.jpg 99\nb.jpg 100\nc.jpg 0\n')
    config = Config.fromfile(ROOT / 'configs/convit/ablations/convit-small_8xb128_in100.py')
    init_default_scope(config.default_scope)
    settings = {**config.train_dataloader.dataset, 'data_root': str(tmp_path), 'pipeline': []}
    dataset = DATASETS.build(settings)
    assert dataset.get_gt_labels().tolist() == [99, 0] and len(dataset.metainfo['classes']) == 100


def test_pacs_leaves_one_domain_out(tmp_path: Path) -> None:
    pacs(tmp_path)
    train, test = (PACS(str(tmp_path), 'photo', split) for split in ('train', 'test'))
    places = [[Path(sample['img_path']).parts[-3:-1] for sample in dataset] for dataset in (train, test)]
    assert places[1] == [('photo', name) for name in PACS.CLASSES]
    assert places[0] == [(domain, name) for domain in DOMAINS if domain != 'photo' for name in PACS.CLASSES]
    assert np.unique([sample['gt_label'] for sample in train]).tolist() == list(range(7))
    assert test.metainfo['classes'] == PACS.CLASSES and [train.test_mode, test.test_mode] == [False, True]
    with pytest.raises(InputError, match=r"the target of PACS must be one of art_painting, .* got 'painting'"):
        PACS(str(tmp_path), 'painting')
    (tmp_path / 'photo/dog/pic.jpg').unlink()
    (tmp_path / 'photo/dog').rmdir()
    with pytest.raises(InputError, match='no folder dog in .*photo: expected a folder for each class'):
        PACS(str(tmp_path), 'photo', 'test')


def test_a_fraction_of_each_class(tmp_path: Path) -> None:
    """The same images every time, and those of a smaller fraction among those of a larger one."""
    counts = dict(ant=20, bee=10, cow=4, dog=1)
    for name, number in counts.items():
        (tmp_path / name).mkdir()
        for index in range(number):
            (tmp_path / name / f'{index}.jpg').touch()
    init_default_scope('mmpretrain')

    def images(fraction: float) -> list[str]:
        dataset = dict(type='CustomDataset', data_root=str(tmp_path), data_prefix='')
        part = dict(type='bioattn_mm.class_balanced_part', fraction=fraction, dataset=dataset)
        return [sample['img_path'] for sample in DATASETS.build(part)]

    first = images(0.3)
    assert Counter(Path(path).parent.name for path in set(first)) == dict(ant=6, bee=3, cow=1, dog=1)
    assert images(0.3) == first
    assert len(first) == 11 and set(first) < set(images(0.5)) and len(images(1)) == sum(counts.values())
    for fraction in (0, 1.5):
        with pytest.raises(InputError, match=f'above 0 and at most 1, got {fraction}'):
            images(fraction)
