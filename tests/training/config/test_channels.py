"""Own data that are not RGB in 8 bits: what is found out, and what it changes in a config."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope
from PIL import Image

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.images import ImageKind
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.model_check import model_of
from bioattn_mm.training.config.pipelines import find_dicts, image_kind

from ...conftest import ROOT
from ...own_folders import convert_images, write_coco_folder, write_mask_folder

SEGMENTOR, DETECTOR = (str(ROOT / f'tests/tools/{name}.py') for name in ('upernet_small', 'mask_rcnn_small'))
SEEDS = range(5)


def deep(image: np.ndarray) -> np.ndarray:
    """Four channels of 16 bits, whose low bytes say more than the high ones."""
    return np.dstack([image, image[..., 0] // 2]).astype(np.uint16) + np.array([30000, 256, 0, 512], np.uint16)


def floats(image: np.ndarray) -> np.ndarray:
    return np.dstack([image, image[..., :2]]).astype(np.float32) / 255 + 1000


def convert_to(folder: Path, convert: Callable[[np.ndarray], np.ndarray], suffix: str = '.npy') -> Path:
    """Write the images of a folder anew."""

    def write(path: Path, image: np.ndarray) -> None:
        image = convert(image)
        if suffix == '.npy':
            np.save(path, image)
        else:
            cv2.imwrite(str(path), image if image.ndim == 2 else image[..., [2, 1, 0, 3][: image.shape[2]]])

    return convert_images(folder, write, suffix)


def fields(folder: Path, convert: Callable[[np.ndarray], np.ndarray] = deep) -> Path:
    """A folder of arrays with label maps."""
    return convert_to(write_mask_folder(folder, SEEDS), convert)


def config_of(folder: Path, base: str | Config = SEGMENTOR, **arguments: object) -> Config:
    return load_config(base, data=DataArguments(str(folder), **arguments))


def train_images(folder: Path, config: Config) -> list[Path]:
    return [folder / 'images' / name for name in Path(config.train_dataloader.dataset.ann_file).read_text().split()]


def test_a_config_for_channels(tmp_path: Path) -> None:
    folder = fields(tmp_path / 'fields')
    config = config_of(folder)
    images = list(map(np.load, train_images(folder, config)))
    pixels = np.concatenate([image.reshape(-1, 4) for image in images]).astype(np.float64)
    preprocessor = config.model.data_preprocessor
    assert np.allclose(preprocessor.mean, pixels.mean(0), rtol=1e-5) and not preprocessor.bgr_to_rgb
    assert np.allclose(preprocessor.std, pixels.std(0), rtol=1e-5)
    assert image_kind(config) == ImageKind(4, 'uint16')
    types = ' '.join(str(node.get('type')) for node in find_dicts(config))
    assert 'PhotoMetricDistortion' not in types and 'LoadImageFromFile' not in types
    assert 'augmentation that needs RGB in 8 bits is left out: PhotoMetricDistortion' in config.own_data
    assert any(line.startswith('images of 4 channels of uint16: mean 3') for line in config.own_data)
    assert model_of(config).backbone.in_channels == 4

    # Nothing is rounded to 8 bits on the way to the model.
    dataset, kept = config.train_dataloader.dataset, ('FromFile', 'Annotations', 'Inputs')
    dataset.pipeline = [step for step in dataset.pipeline if step.type.endswith(kept)]
    init_default_scope('mmseg')
    sample, image = DATASETS.build(dataset)[0], images[0]
    assert np.array_equal(sample['inputs'].numpy(), image.transpose(2, 0, 1))
    model = MODELS.build({**preprocessor, 'size': image.shape[:2]})
    inputs = model({key: [value] for key, value in sample.items()}, training=True)['inputs'][0]
    expected = (image - pixels.mean(0)) / pixels.std(0)
    assert np.allclose(inputs.numpy().transpose(1, 2, 0), expected, atol=1e-3)

    # The config that a training writes keeps what was measured, whatever the images are.
    config.dump(tmp_path / 'dumped.py')
    other = fields(tmp_path / 'other', lambda image: deep(image) + 99)
    again = config_of(other, str(tmp_path / 'dumped.py'))
    assert again.model.data_preprocessor == preprocessor
    with pytest.raises(InputError, match='dumped.py is of a model of 4 channels of uint16: name the config'):
        config_of(other, str(tmp_path / 'dumped.py'), as_rgb=True)
    fields(tmp_path / 'floats', floats)
    with pytest.raises(InputError, match=r'part_00\d.npy has 5 channels of float32, .*dumped.py takes 4 channels of'):
        config_of(tmp_path / 'floats', str(tmp_path / 'dumped.py'))


# What the images are, and as which they are read.
KINDS: dict[str, tuple[Callable | None, str, ImageKind | None]] = {
    'RGB': (None, '', None),
    'opaque': (lambda image: np.pad(image, ((0, 0), (0, 0), (0, 1)), constant_values=255), '.png', None),
    'constant': (lambda image: np.pad(image, ((0, 0), (0, 0), (0, 1))), '.png', ImageKind(4, 'uint8')),
    'alpha': (lambda image: np.dstack([image, image[..., 0]]), '.png', ImageKind(4, 'uint8')),
    'grey': (lambda image: image[..., 0], '.png', ImageKind(1, 'uint8')),
    'deep RGB': (lambda image: deep(image)[..., :3], '.png', ImageKind(3, 'uint16')),
    'floats': (floats, '.npy', ImageKind(5, 'float32')),
    'RGB as arrays': (lambda image: image, '.npy', ImageKind(3, 'uint8')),
}


@pytest.mark.parametrize('name', KINDS)
def test_what_images_are(name: str, tmp_path: Path) -> None:
    convert, suffix, kind = KINDS[name]
    folder = write_coco_folder(tmp_path / 'parts', SEEDS)
    if convert:
        convert_to(folder, convert, suffix)
    config = config_of(folder, DETECTOR)
    assert image_kind(config) == kind
    if kind is None:
        as_rgb = config_of(folder, DETECTOR, as_rgb=True)
        assert as_rgb.model == config.model
        assert as_rgb.train_dataloader.dataset.pipeline == config.train_dataloader.dataset.pipeline
        assert config.model.data_preprocessor == Config.fromfile(DETECTOR).model.data_preprocessor
    else:
        assert model_of(config).backbone.in_channels == kind.channels == len(config.model.data_preprocessor.mean)
        assert min(config.model.data_preprocessor.std) > 0
    notes = '\n'.join(config.own_data)
    assert ('every pixel of channel 4 has the same value' in notes) == (name == 'constant')
    assert ('alpha channel that is opaque' in notes) == (name == 'opaque')


def test_images_of_several_kinds_in_8_bits_stay_what_they_were(tmp_path: Path) -> None:
    folder = write_mask_folder(tmp_path / 'scenes', SEEDS)
    for name, mode in (('001', 'L'), ('003', 'RGBA')):
        path = folder / f'images/part_{name}.png'
        Image.open(path).convert(mode).save(path)
    # A folder of images may have arrays beside them, such as features.
    np.save(folder / 'images/part_000.npy', np.zeros((4, 4)))
    config = config_of(folder)
    assert image_kind(config) is None
    assert all(path.suffix != '.npy' for path in train_images(folder, config))


def test_arrays_that_differ_or_cannot_be_measured(tmp_path: Path) -> None:
    folder = fields(tmp_path / 'fields')
    path = folder / 'images/part_002.npy'
    np.save(path, np.load(path)[..., :3])
    with pytest.raises(InputError, match='part_002.npy has 3 channels of uint16, 4 of 5 images have 4 channels of'):
        config_of(folder)
    # Where all problems are listed, and where bad images are skipped, it is left to what loads them.
    assert image_kind(config_of(folder, problems=[])) == ImageKind(4, 'uint16')
    path.write_bytes(b'no array')
    with pytest.raises(InputError, match='cannot decode the image .*part_002.npy'):
        config_of(folder)
    np.save(path, np.full((96, 120, 4), 1.0))
    with pytest.raises(InputError, match='part_002.npy is of float64, expected uint8, uint16, float32'):
        config_of(folder)
    with pytest.raises(InputError, match='no training images of 4 channels of uint16 to measure'):
        load_config(SEGMENTOR, data=DataArguments(val_data=str(fields(tmp_path / 'val'))))

    folder = fields(tmp_path / 'floats', floats)
    path = train_images(folder, config_of(folder))[0]
    image = np.load(path)
    image[5, :3, 2] = np.nan, np.inf, -np.inf
    np.save(path, image)
    with pytest.raises(InputError, match=f'{path.name} has 3 values that are NaN or infinite'):
        config_of(folder)
    config = config_of(folder, problems=[])
    assert any(line.endswith('of 3 training images') for line in config.own_data)
    assert np.isfinite(config.model.data_preprocessor.mean).all()


def test_steps_that_opencv_pads_in(tmp_path: Path) -> None:
    base = Config.fromfile(SEGMENTOR)
    load, annotations, *_, pack = base.train_dataloader.dataset.pipeline
    pad = dict(type='Pad', size=(160, 150), pad_val=dict(img=(1, 2, 3), seg=255))
    base.train_dataloader.dataset.pipeline = [load, annotations, pad, pack]
    config = config_of(fields(tmp_path / 'fields'), base)
    init_default_scope('mmseg')
    inputs = DATASETS.build(config.train_dataloader.dataset)[0]['inputs']
    assert inputs.shape == (4, 150, 160) and not inputs[:, 120:].any()
    with pytest.raises(InputError, match='small.py has a step Pad, and OpenCV pads images of at most 4 channels'):
        config_of(fields(tmp_path / 'floats', floats), base)
