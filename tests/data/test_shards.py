"""Data in tar files: the same samples as from their own files, few files opened."""

import os
import runpy
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset, DefaultSampler
from mmengine.registry import DATA_SAMPLERS, init_default_scope
from torch.utils.data import DataLoader

from bioattn_mm.data.samplers import SeededInfiniteSampler, seed_everything, seed_samples, skip_batches
from bioattn_mm.data.shards import (
    InfiniteShardSampler,
    ShardBackend,
    ShardIndex,
    ShardSampler,
    shard_order,
    write_shards,
)
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import build_dataset, find_datasets
from bioattn_mm.training.config.shards import shuffle_shards

from ..tools.running import ROOT, InProcess
from ..tools.small_images import NO_WORKERS, small_training
from .conftest import assert_same_annotations

CONFIGS = {
    name: str(ROOT / f'configs/transnext/{config}.py')
    for name, config in dict(
        ade='upernet_micro_ade20k', coco='mask_rcnn_micro_coco', panoptic='mask2former_micro_coco_panoptic'
    ).items()
}
ADE = pytest.mark.parametrize('name', ['ade'])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    files, open_ = [], os.open
    monkeypatch.setattr(os, 'open', lambda file, *args: files.append(Path(file).name) or open_(file, *args))
    return files


@pytest.fixture
def shards(name: str, workplace: Path, tool: InProcess) -> Path:
    """A folder of small shards of a miniature, made once."""
    folder = workplace / 'test_shards' / name
    if not folder.exists():
        printed = tool(workplace, 'make_shards.py', CONFIGS[name], '--mini', '--size', '300kB', '--out', folder)
        assert printed.splitlines()[-1].endswith(f': {folder}')
    tool.monkeypatch.chdir(workplace)
    return folder


def build(name: str, shards: Path | None = None, split: str = 'train') -> BaseDataset:
    key = f'{split}_dataloader'
    config = load_config(CONFIGS[name], mini=True, dataloaders=(key,), shards=str(shards) if shards else None)
    init_default_scope(config.default_scope)
    return build_dataset(next(find_datasets(config[key])))


def samples(dataset: BaseDataset, indices: Iterable[int]) -> Iterator[dict]:
    for index in indices:
        seed_everything(3, index)
        yield dataset[index]


@pytest.mark.parametrize('name', CONFIGS)
def test_the_samples_of_the_files_where_no_data_are(
    name: str, shards: Path, opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices = dict(train=range(10), val=(0, 5))
    expected = {split: [*samples(build(name, split=split), indices[split])] for split in indices}
    monkeypatch.chdir(tmp_path)
    opened.clear()
    for split in indices:
        dataset = build(name, shards, split)
        for one, other in zip(expected[split], samples(dataset, indices[split]), strict=True):
            assert torch.equal(one['inputs'], other['inputs'])
            assert_same_annotations(one['data_samples'], other['data_samples'])
        dataset.pipeline.transforms = dataset.pipeline.transforms[:1]  # which reads the image's file
        assert all(dataset)
    tars = {path.name for path in shards.glob('*.tar')}
    assert {name for name in opened if name.endswith('.tar')} <= tars and len(opened) <= len(tars) < 25
    if name == 'coco':
        config = load_config(CONFIGS[name], mini=True, shards=str(shards), dataloaders=('val_dataloader',))
        assert Path(config.val_evaluator.ann_file).is_relative_to(shards)


@ADE
def test_what_is_refused(name: str, shards: Path, tmp_path: Path, workplace: Path, tool: InProcess) -> None:
    def damaged(damage: Callable[[Path], object]) -> Path:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(shards, folder)
        damage(folder)
        return folder

    mini = 'train.py', CONFIGS['ade'], '--dry-run', '--mini'
    make = 'make_shards.py', CONFIGS['ade'], '--mini', '--out'
    missing = damaged(lambda folder: (folder / 'train-000002.tar').unlink())
    wrong = [
        ([*mini, '--shards', damaged(lambda folder: os.truncate(folder / 'train-000001.tar', 5000))],
         'train-000001.tar has 5,000 bytes, not '),
        ([*mini, '--shards', missing], f'error: the shard {missing}/train-000002.tar is missing: copy it again'),
        ([*mini, '--shards', damaged(lambda folder: (folder / 'index.json').write_text('{'))], 'json is damaged'),
        ([*mini, '--shards', tmp_path], 'there is no index.json; make it with tools/make_shards.py'),
        ([*mini, '--shuffle-shards'], 'add --shards DIR'),
        (['train.py', CONFIGS['coco'], '--mini', '--dry-run', '--shards', shards], 'has no images of '),
        ([*mini[:3], '--data', '.', '--shards', shards], 'leave out --data'),
        ([*make, shards], 'is there already'),
        ([*make, 'other', '--size', 'many'], '--size must be a number of bytes such as 512MB or 1GB, got many'),
        (['make_shards.py', 'configs/transnext/transnext-micro_8xb128_in1k.py', *make[2:], 'other'],
         'shards are for datasets of mmdet and mmseg'),
    ]  # fmt: skip
    for arguments, message in wrong:
        assert message in tool.error(workplace, *arguments)
    assert not (workplace / 'other').exists()

    # While training runs.
    index = ShardIndex(str(damaged(lambda folder: None)))
    files = sorted(index.files, key=lambda file: index.files[file])
    os.truncate(index.folder / 'train-000000.tar', 5000)
    with pytest.raises(InputError, match=r'train-000000.tar ends before the end of '):
        index.read(files[3])
    (index.folder / 'train-000001.tar').unlink()
    with pytest.raises(InputError, match='train-000001.tar is missing'):
        index.read(next(file for file in files if index.files[file][0] == 1))


@pytest.mark.parametrize(('text', 'number'), [('512MB', 512_000_000), ('1.5GB', 1_500_000_000), ('20kB', 20_000)])
def test_numbers_of_bytes(text: str, number: int) -> None:
    assert runpy.run_path(str(ROOT / 'tools/make_shards.py'))['bytes_of'](text) == number


@pytest.mark.parametrize('root', ['.', './', 'data', 'data/'])
def test_annotation_files_in_the_root(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (inside := Path(root, 'ann/a.json'), Path('other/b.json')):
        file.parent.mkdir(parents=True)
        file.touch()
    evaluator = dict(ann_file='other/b.json')
    dataset = dict(type='CocoDataset', data_root=root, ann_file='ann/a.json')
    config = Config(dict(train_dataloader=dict(dataset=dataset), test_evaluator=evaluator))
    found = runpy.run_path(str(ROOT / 'tools/make_shards.py'))['annotation_files'](config, root)
    assert inside in map(Path, found) and (len(found) == 2) == (root in ('.', './'))


@ADE
def test_the_backend_answers_as_the_files_do(name: str, shards: Path) -> None:
    root = next(find_datasets(load_config(CONFIGS[name], mini=True).train_dataloader)).data_root
    backend = ShardBackend(str(shards), root)
    images = sorted(path.name for path in Path(root, 'images/training').iterdir())
    assert list(backend.list_dir_or_file(f'{root}/images/training', list_dir=False, suffix='.jpg')) == images
    assert list(backend.list_dir_or_file(f'{root}/images', list_file=False)) == ['training', 'validation']
    assert list(backend.list_dir_or_file(root, list_dir=False)) == []
    assert backend.isdir(root) and backend.isdir(f'{root}/images') and not backend.isdir(f'{root}/other')
    file = f'{root}/images/training/{images[0]}'
    assert backend.isfile(file) and backend.exists(file) and not backend.exists(f'{file}x')
    assert backend.get(file) == Path(file).read_bytes()
    with pytest.raises(FileNotFoundError):
        backend.get(f'{file}x')


class Images(list):
    """A dataset of the images of these paths."""

    def get_data_info(self, index: int) -> dict:
        return dict(img_path=str(self[index]))


def test_two_datasets_of_a_split_and_files_in_the_root_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `ConcatDataset`: the second one does not overwrite the tar files of the first."""
    root, shards = tmp_path / 'data', tmp_path / 'shards'
    shards.mkdir()
    root.mkdir()
    datasets = [(split, Images([root / name])) for name, split in dict(a='train', b='train', c='val').items()]
    for name in 'abc':
        (root / name).write_text(f'image of {name}')
    write_shards(shards, 10**6, str(root), datasets, [])
    index = ShardIndex(str(shards))
    assert index.shards == ['train-000000.tar', 'train-000001.tar', 'val-000000.tar']
    for max_open in (3, 1):  # with and without all shards open
        monkeypatch.setattr('bioattn_mm.data.shards.MAX_OPEN', max_open)
        index = ShardIndex(str(shards))
        assert [index.read(name) for name in 'abcab'] == [f'image of {name}'.encode() for name in 'abcab']
        assert len(index._open) == max_open
    assert ShardBackend(str(shards), str(root)).isdir(root)


SHARDS = np.repeat(np.arange(10), 7)  # of 70 samples


@pytest.mark.parametrize('world_size', [1, 2, 3])
def test_an_order_of_shards(world_size: int) -> None:
    orders = [shard_order(SHARDS, (4, 0), rank, world_size, 2, False) for rank in range(world_size)]
    assert sorted(np.concatenate(orders)) == list(range(70))
    sizes = [len(order) for order in orders]
    assert sizes == [len(range(rank, 70, world_size)) for rank in range(world_size)]
    for order in orders:
        # Each process opens its part of the shards, and at no time more than are mixed.
        assert len(set(SHARDS[order])) <= -(-10 // world_size) + 1
        firsts = [list(SHARDS[order]).index(shard) for shard in dict.fromkeys(SHARDS[order])]
        lasts = [len(order) - 1 - list(SHARDS[order][::-1]).index(shard) for shard in dict.fromkeys(SHARDS[order])]
        assert max(sum(a <= place <= b for a, b in zip(firsts, lasts)) for place in range(len(order))) <= 2
    whole = shard_order(SHARDS, (4, 0), 0, 1, 2, True)
    assert not np.array_equal(whole, shard_order(SHARDS, (4, 1), 0, 1, 2, True))
    assert np.abs(np.diff(SHARDS[whole])).astype(bool).sum() > 30  # two shards are mixed, not one after the other
    padded = [shard_order(SHARDS, (4, 0), rank, 3, 2, True) for rank in range(3)]
    assert {len(order) for order in padded} == {24} and set(np.concatenate(padded)) == set(range(70))


@ADE
def test_samplers(name: str, shards: Path) -> None:
    dataset = build(name, shards)
    dataset.full_init()
    numbers = [int(index) for index in range(len(dataset))]

    def sampler_for(kind: str, **options: bool) -> ShardSampler | InfiniteShardSampler:
        config = Config(dict(train_dataloader=dict(sampler=dict(type=kind, seed=5, **options))))
        shuffle_shards(config, 2)
        return DATA_SAMPLERS.build(dict(config.train_dataloader.sampler, dataset=dataset))

    sampler = sampler_for('DefaultSampler', shuffle=True)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert sorted(first) == sorted(second) == numbers and first != second
    # The same augmentation as under mmengine's sampler.
    loader = DataLoader(dataset, 2, sampler=DefaultSampler(dataset, seed=5))
    assert seed_samples(loader) == []
    assert {index: index.seed for index in loader.sampler} == {index: index.seed for index in first}
    assert seed_samples(DataLoader(dataset, 2, sampler=sampler)) == []
    assert list(ShardSampler(dataset, shuffle=False)) == numbers

    endless = sampler_for('InfiniteSampler')
    indices = [index for _, index in zip(range(300), endless)]
    assert sorted(indices[:120]) == sorted(indices[120:240]) == numbers
    assert [index.seed for index in indices] == [(5, place) for place in range(300)]
    resumed = sampler_for('InfiniteSampler')
    resumed.skip(130)
    rest = [index for _, index in zip(range(170), resumed)]
    assert rest == indices[130:] and [index.seed for index in rest] == [index.seed for index in indices[130:]]
    assert isinstance(endless, SeededInfiniteSampler) and sampler.mixed == endless.mixed == 2
    with pytest.raises(InputError, match='add --shards DIR'):
        ShardSampler(build(name))


@ADE
def test_the_rest_of_an_epoch(name: str, shards: Path, opened: list[str]) -> None:
    dataset = build(name, shards)
    dataset.full_init()

    def loader() -> DataLoader:
        sampler = ShardSampler(dataset, mixed=1, shuffle=True, seed=5)
        return DataLoader(dataset, 10, sampler=sampler, collate_fn=lambda samples: samples)

    backend = ShardBackend(**{key: dataset.backend_args[key] for key in ('shards', 'root')})
    resumed = loader()
    skip_batches(resumed.batch_sampler, 9)
    for descriptor in backend.index._open.values():
        os.close(descriptor)
    backend.index._open.clear()
    opened.clear()
    rest = list(resumed)
    wanted = list(loader().batch_sampler)[9:]
    assert len(rest) == len(wanted) == 3
    images = [dataset.get_data_info(index)['img_path'] for batch in wanted for index in batch]
    assert [sample['data_samples'].img_path for batch in rest for sample in batch] == images
    # Those of the remaining 30 of 120 samples, each opened once.
    names = {backend.index.shards[backend.shard_of(image)] for image in images}
    assert sorted(opened) == sorted(names)
    assert len(names) < len(list(shards.glob('train-*.tar'))) / 2


def test_training_and_testing_where_no_data_are(workplace: Path, tmp_path: Path, tool: InProcess) -> None:
    config, shards, empty = str(ROOT / 'tests/tools/upernet_small.py'), tmp_path / 'shards', tmp_path / 'no_data'
    tool(workplace, 'make_shards.py', config, '--mini', '--size', '500kB', '--out', shards)
    empty.mkdir()
    few = 'randomness.seed=0', 'train_cfg.max_iters=2', 'train_cfg.val_begin=9', 'default_hooks.checkpoint.interval=2'
    weights, tested = [], []
    for folder, *options in ((workplace,), (empty, '--shards', shards)):
        out, settings = tmp_path / f'from_{folder.name}', ('--cfg-options', *NO_WORKERS)
        options += ['--mini', '--work-dir', out]
        tool(folder, 'train.py', config, *options, *settings, *few, *small_training(config))
        weights.append(torch.load(out / 'iter_2.pth', weights_only=False)['state_dict'])
        options += ['--show-dir', out / 'drawn', *settings, 'test_dataloader.dataset.indices=3']
        printed = tool(folder, 'test.py', config, out / 'iter_2.pth', *options)
        tested.append(next(line for line in printed.splitlines() if line.startswith('aAcc')))
        assert len(list((out / 'drawn').rglob('*.png'))) == 4
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    assert tested[0] == tested[1] and not list(empty.iterdir())
