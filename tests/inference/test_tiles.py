"""Detection in tiles: what they cover, how their detections merge, and a large image by the tool."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData
from pycocotools import mask as coco_mask

from bioattn_mm import Predictor
from bioattn_mm.errors import InputError
from bioattn_mm.inference.rasters import Raster, blocks
from bioattn_mm.inference.results import Results
from bioattn_mm.inference.run_lengths import decode_mask
from bioattn_mm.inference.tiles import Tiling, merge, placed
from bioattn_mm.runtime.channels import ImageKind
from bioattn_mm.runtime.drawing import resized_labels

from ..needs import needs
from ..tools.running import InProcess
from .conftest import CONFIGS


@pytest.mark.parametrize('size', [(100, 100), (101, 257), (40, 300), (64, 64), (30, 20)])
@pytest.mark.parametrize('overlap', [0.0, 0.2, 0.9])
def test_tiles_cover_the_image_and_overlap(size: tuple[int, int], overlap: float) -> None:
    windows = Tiling(64, overlap).windows(*size)
    covered = np.zeros(size, int)
    for window in windows:
        assert covered[window].shape == tuple(min(64, length) for length in size)
        covered[window] += 1
    assert covered.min() == 1 or overlap > 0.5
    starts = sorted({columns.start for _, columns in windows})
    assert all(after - before <= round(64 * (1 - overlap)) for before, after in zip(starts, starts[1:]))


@pytest.mark.parametrize('size', [(100, 100), (101, 257), (40, 65), (30, 20)])
def test_blocks_cover_the_image_with_margins_of_one_size(size: tuple[int, int]) -> None:
    pixels, covered = np.arange(size[0] * size[1]).reshape(size), np.zeros(size, int)
    for own, outer, inner in blocks(*size, 32, 10):
        assert pixels[outer].shape == tuple(min(52, length) for length in size)
        assert np.array_equal(pixels[outer][inner], pixels[own])
        for mine, around, length in zip(own, outer, size):
            assert around.start <= max(mine.start - 10, 0) and around.stop >= min(mine.stop + 10, length)
        covered[own] += 1
    assert (covered == 1).all()


def part(*objects: tuple[list[float], float, int]) -> InstanceData:
    boxes, scores, labels = zip(*objects) if objects else ([], [], [])
    return InstanceData(
        bboxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        scores=torch.tensor(scores, dtype=torch.float32),
        labels=torch.tensor(labels, dtype=torch.int64),
    )


def test_detections_of_one_object_become_one() -> None:
    windows = [(slice(0, 64), slice(0, 64)), (slice(0, 64), slice(48, 112)), (slice(0, 64), slice(0, 112))]
    left = part(([40, 10, 64, 30], 0.8, 1), ([2, 2, 12, 12], 0.9, 0), ([4, 2, 14, 12], 0.7, 0))
    right = part(([0, 10, 22, 31], 0.6, 1), ([40, 40, 60, 60], 0.4, 2))
    whole = part(([40, 9, 70, 30], 0.5, 1), ([3, 2, 13, 12], 0.3, 3))
    merged = merge([left, right, whole], windows, [(64, 64), (64, 64), (64, 112)], (64, 112))
    found = [(*box, label) for box, label in zip(merged.bboxes.tolist(), merged.labels.tolist())]
    assert found == [
        (2, 2, 12, 12, 0),
        (40, 9, 70, 31, 1),  # cut by the border of a tile
        (4, 2, 14, 12, 0),  # told apart from the first one by the detector
        (88, 40, 108, 60, 2),
        (3, 2, 13, 12, 3),  # of another class
    ]
    torch.testing.assert_close(merged.scores, torch.tensor([0.9, 0.8, 0.7, 0.4, 0.3]))
    assert len(merge([part(), part()], windows[:2], [(64, 64)] * 2, (64, 112))) == 0


def test_what_a_tile_told_apart_stays_apart_inside_a_detection_of_the_image() -> None:
    """A heap that is found in the whole image does not swallow the things that a tile finds in it."""
    windows = [(slice(0, 256), slice(0, 256)), (slice(0, 300), slice(0, 300))]
    tile = part(([20, 20, 60, 60], 0.5, 0), ([70, 20, 110, 60], 0.4, 0), ([20, 80, 60, 120], 0.3, 0))
    merged = merge([tile, part(([10, 10, 210, 210], 0.9, 0))], windows, [(256, 256), (300, 300)], (300, 300))
    assert merged.bboxes.tolist() == [
        [10, 10, 210, 210], [20, 20, 60, 60], [70, 20, 110, 60], [20, 80, 60, 120]
    ]  # fmt: skip
    # Nor do two neighbours become one that the border of the tile cuts.
    cut = part(([200, 20, 256, 60], 0.8, 0), ([200, 64, 256, 100], 0.7, 0))
    merged = merge([cut, part(([190, 10, 290, 110], 0.9, 0))], windows, [(256, 256), (300, 300)], (300, 300))
    assert len(merged) == 2


def test_masks_are_placed_and_united() -> None:
    draw = np.random.default_rng(0)
    full = draw.random((50, 90)) < 0.5
    windows = [(slice(0, 50), slice(0, 60)), (slice(10, 50), slice(40, 90)), (slice(3, 4), slice(5, 6))]
    for window in windows:
        mask = coco_mask.encode(np.asfortranarray(full[window], np.uint8))
        expected = np.zeros((50, 90), bool)
        expected[window] = full[window]
        assert (coco_mask.decode(placed(mask, window, 50, 90)) == expected).all()
    parts = [part(([50, 12, 60, 22], 0.9, 0)), part(([10, 2, 22, 12], 0.8, 0))]
    for each, window in zip(parts, windows):
        each.masks = [coco_mask.encode(np.asfortranarray(full[window], np.uint8))]
    merged = merge(parts, windows[:2], [(50, 60), (40, 50)], (50, 90))
    expected = np.zeros((50, 90), bool)
    for window in windows[:2]:
        expected[window] |= full[window]
    assert len(merged) == 1 and (coco_mask.decode(merged.masks[0]) == expected).all()


@pytest.mark.parametrize('gives_arrays', [False, True])
def test_an_image_smaller_than_a_tile_is_predicted_on_as_it_is(
    gives_arrays: bool,
    detector: Predictor,
    checkpoints: dict[str, str],
    image: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if gives_arrays:  # as Mask2Former, SOLO and others do
        monkeypatch.setattr('bioattn_mm.inference.predictor.encode_masks', lambda model, score_thr: None)
    tiled = Predictor(CONFIGS['detection'], checkpoints['detection'], mini=True, device='cpu', tiling=Tiling(64))
    (sample,), (expected,) = tiled(image), detector(image)
    order = expected.pred_instances.scores.argsort(descending=True, stable=True)
    torch.testing.assert_close(sample.pred_instances.bboxes, expected.pred_instances.bboxes[order])
    for mask, index in zip(sample.pred_instances.masks, order.tolist()):
        assert (coco_mask.decode(mask) == expected.pred_instances.masks[index].numpy()).all()


def test_a_large_image_by_the_tool(workplace: Path, checkpoints: dict[str, str], tool: InProcess) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (150, 210, 3), dtype=np.uint8)
    cv2.imwrite(str(workplace / 'large.png'), noise)
    command = (
        'predict.py',
        CONFIGS['detection'],
        checkpoints['detection'],
        'large.png',
        '--mini',
        '--score-thr',
        '0.0',
    )
    tool(workplace, *command, '--tile', '100', '--tile-overlap', '0.3', '--batch-size', '2', '--out', 'tiled')
    document = json.loads((workplace / 'tiled/predictions.json').read_text())
    assert document['images'][0]['width'] == 210 and document['images'][0]['height'] == 150
    right = [each for each in document['annotations'] if each['bbox'][0] > 110]
    assert right and all(each['segmentation']['size'] == [150, 210] for each in right)
    assert cv2.imread(str(workplace / 'tiled/overlays/large.png')).shape == noise.shape


def test_a_bad_image_does_not_end_the_run(
    checkpoints: dict[str, str], image: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiled = Predictor(CONFIGS['detection'], checkpoints['detection'], mini=True, device='cpu', tiling=Tiling(64))
    run = tiled._run

    def run_small(images: list[np.ndarray], return_logits: bool) -> list[BaseDataElement]:
        if images[0].max() == 7:
            raise torch.OutOfMemoryError('CUDA out of memory')
        return run(images, return_logits)

    monkeypatch.setattr(tiled, '_run', run_small)
    (tmp_path / 'text.png').write_text('no image')
    bad = {
        'cannot decode the image .*text.png': tmp_path / 'text.png',
        'an image of 1000 x 1 pixels cannot be resized': np.zeros((1, 1000, 3), np.uint8),
        'an image of 60 x 40 pixels needs more memory than there is': np.full_like(image, 7),
    }
    *between, last = tiled.iterate([*bad.values(), image])
    assert last.error is None and 'bboxes' in last.sample.pred_instances
    for prediction, message in zip(between, bad, strict=True):
        assert re.match(message, str(prediction.error)) and prediction.sample is None
    monkeypatch.setattr(tiled, '_run', lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tiled(image)


def test_what_cannot_be_tiled(checkpoints: dict[str, str]) -> None:
    with pytest.raises(InputError, match='tiles are for detectors .*: of segmentors slide a window'):
        Predictor(CONFIGS['segmentation'], checkpoints['segmentation'], mini=True, tiling=Tiling(64))
    with pytest.raises(InputError, match='side of 32 pixels or more, got 16'):
        Tiling(16)
    with pytest.raises(InputError, match='a part from 0 to below 1, got 1'):
        Tiling(64, 1)


def test_masks_of_a_reduced_image_are_placed() -> None:
    mask = np.random.default_rng(0).random((20, 30)) < 0.5
    window = (slice(0, 47), slice(0, 61))
    large = placed(coco_mask.encode(np.asfortranarray(mask, np.uint8)), window, 47, 61)
    assert (coco_mask.decode(large) == resized_labels(mask, (47, 61))).all()
    assert (decode_mask(large, (9, 14)) == resized_labels(coco_mask.decode(large), (9, 14))).all()


@pytest.fixture
def geotiff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image that is large, because larger ones than this one are not drawn as they are."""
    import rasterio

    monkeypatch.setattr('bioattn_mm.inference.rasters.MAX_PIXELS', 100 * 100)
    values = np.random.default_rng(0).integers(0, 255, (3, 150, 210), dtype=np.uint8)
    path = tmp_path / 'field.tif'
    profile = dict(driver='GTiff', count=3, height=150, width=210, dtype='uint8', crs='EPSG:32633')
    with rasterio.open(path, 'w', transform=rasterio.Affine(0.5, 0, 4e5, 0, -0.5, 5e6), **profile) as file:
        file.write(values)
    return path


@needs('rasterio')
def test_detection_in_a_large_tiff(geotiff: Path, checkpoints: dict[str, str], tmp_path: Path) -> None:
    tiled = Predictor(CONFIGS['detection'], checkpoints['detection'], mini=True, device='cpu', tiling=Tiling(100))
    (prediction,) = tiled.iterate([geotiff], 2)
    assert prediction.error is None and prediction.image.shape == (150, 210, 3)
    assert prediction.image.reduced.shape[0] * prediction.image.reduced.shape[1] <= 100 * 100
    found = prediction.sample.pred_instances
    assert found.bboxes[:, 2].max() > 110 and found.masks[0]['size'] == [150, 210]
    image = cv2.imread(str(geotiff))
    for window in tiled.tiling.windows(150, 210):
        assert (prediction.image[window] == image[window]).all()
    results = Results(tmp_path / 'out', tiled, score_thr=0.0)
    results.add_image(prediction)
    assert cv2.imread(str(tmp_path / 'out/overlays/field.png')).shape == prediction.image.reduced.shape
    check_cut_off(tiled, geotiff)


def check_cut_off(predictor: Predictor, geotiff: Path) -> None:
    """A file whose header alone is whole does not end the run."""
    geotiff.write_bytes(geotiff.read_bytes()[:20000])
    bad, good = predictor.iterate([geotiff, np.zeros((64, 64, 3), np.uint8)])
    assert str(bad.error) == f'cannot decode the image {geotiff}: damaged' and bad.sample is None
    assert good.error is None


@needs('rasterio', 'tifffile')
def test_windows_have_all_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tifffile

    monkeypatch.setattr('bioattn_mm.inference.rasters.MAX_PIXELS', 20 * 20)
    path, values = tmp_path / 'field.tif', np.random.default_rng(0).integers(0, 65536, (40, 60, 4), dtype=np.uint16)
    tifffile.imwrite(path, values, planarconfig='contig', photometric='minisblack')
    raster = Raster(path, ImageKind(4, 'uint16'))
    window = slice(5, 25), slice(30, 60)
    assert raster.shape == values.shape and np.array_equal(raster[window], values[window])
    assert raster.reduced.dtype == np.uint16 and raster.reduced.shape == (16, 24, 4)
    with pytest.raises(InputError, match='field.tif has 4 channels of uint16, expected 3 channels of uint16'):
        Raster(path, ImageKind(3, 'uint16'))
    with pytest.raises(InputError, match='field.tif has 4 channels of uint16: by windows, files of one or at least'):
        Raster(path)


@needs('rasterio', 'tifffile')
def test_windows_have_the_colours_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rasterio
    import tifffile

    monkeypatch.setattr('bioattn_mm.inference.rasters.MAX_PIXELS', 20 * 20)
    values = np.random.default_rng(0).integers(0, 256, (40, 60), dtype=np.uint8)
    path, window = tmp_path / 'field.tif', (slice(5, 25), slice(30, 60))

    with_palette = PIL.Image.fromarray(values, 'P')
    with_palette.putpalette([(37 * index) % 256 for index in range(768)])
    for image in (with_palette, PIL.Image.fromarray(values > 127)):
        image.save(path)
        raster = Raster(path)
        expected = np.asarray(image.convert('RGB'))[..., ::-1]
        assert raster.shape == (40, 60, 3) and np.array_equal(raster[window], expected[window])
        assert raster.reduced.shape == (16, 24, 3) and raster.reduced.dtype == np.uint8
    tifffile.imwrite(path, values, photometric='miniswhite')
    assert np.array_equal(Raster(path)[window], np.repeat(255 - values[window][..., None], 3, axis=2))
    tifffile.imwrite(path, values, bigtiff=True)
    assert np.array_equal(Raster(path)[window][..., 0], values[window])

    for bigtiff in (False, True):
        tifffile.imwrite(path, values, extratags=[(274, 3, 1, 6, True)], bigtiff=bigtiff)
        with pytest.raises(InputError, match='field.tif has the orientation tag 6, expected 1: turn its pixels'):
            Raster(path)
    profile = dict(driver='GTiff', count=1, height=40, width=60, dtype='uint8', nbits=4)
    with rasterio.open(path, 'w', **profile) as file:
        file.write(values // 16, 1)
    with pytest.raises(InputError, match='field.tif has 4 bits a channel, expected 8: convert it, .* -scale 0 15 0'):
        Raster(path)


@needs('rasterio')
def test_a_label_map_that_is_not_complete_has_no_name(geotiff: Path, tmp_path: Path) -> None:
    def interrupted(labels: np.ndarray) -> np.ndarray:
        if len(labels) > 1:
            raise KeyboardInterrupt
        return labels

    with pytest.raises(KeyboardInterrupt):
        Raster(geotiff).write_labels(tmp_path / 'out.tif', np.zeros((150, 210), np.uint8), interrupted, [(1, 2, 3)])
    assert not list(tmp_path.glob('*out*'))


@needs('rasterio')
def test_label_map_of_a_large_tiff(
    geotiff: Path, checkpoints: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rasterio

    monkeypatch.setattr('bioattn_mm.inference.predictor.BLOCK', 64)
    predictor = Predictor(CONFIGS['segmentation'], checkpoints['segmentation'], mini=True, device='cpu', mode='slide')
    (prediction,) = predictor.iterate([geotiff])
    labels = prediction.sample.pred_sem_seg.data[0].numpy()
    margin = max(predictor.config.model.test_cfg.crop_size)
    image = cv2.imread(str(geotiff))
    for own, outer, inner in list(blocks(150, 210, 64, margin))[:2]:
        (expected,) = predictor(np.ascontiguousarray(image[outer]))
        assert (labels[own] == expected.pred_sem_seg.data[0][inner].numpy()).all()
    results = Results(tmp_path / 'out', predictor)
    results.add_image(prediction)
    with rasterio.open(geotiff) as source, rasterio.open(tmp_path / 'out/labels/field.tif') as file:
        assert (file.read(1) == labels).all()
        assert file.transform == source.transform and file.crs == source.crs
        assert file.colormap(1)[1][:3] == tuple(predictor.palette[1])
    check_cut_off(predictor, geotiff)
