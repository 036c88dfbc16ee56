"""Attention as a segmentation: what each token gets, its threshold, scores, masks of datasets, and the tool."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest
import torch

from bioattn_mm.analysis import attention_segmentation as segmentation
from bioattn_mm.analysis.attention import attention_received
from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.errors import InputError
from bioattn_mm.systems.common.attention_maps import whole_attention
from bioattn_mm.training.config.loading import load_config

from ..tools.running import InProcess
from .small_backbones import ON_CPU, build, write_config


@pytest.mark.parametrize('name', ['TransNeXt', 'GABSwin', 'ConViT', 'VARS'])
def test_attention_received(name: str) -> None:
    """The column means of the whole matrix; of TransNeXt with what each token gets as a part of pooled ones."""
    for recording in record_attention(build(name).eval(), torch.randn(1, 3, 64, 96)):
        height, width = recording.grid
        received, queries = attention_received(recording, height * width), torch.arange(height * width)
        wanted = np.zeros((len(received), height + 8, width + 8))  # with what is outside
        for part in whole_attention(recording.maps(queries)):
            weights = part.weights[0].numpy()
            if part.rows.is_floating_point():
                blocks = [length // parts for length, parts in zip((height, width), weights.shape[2:])]
                wanted[:, 4:-4, 4:-4] += np.kron(weights.sum(1), np.ones(blocks)) / np.prod(blocks)
                continue
            places = (each.expand(len(queries), -1) for each in (part.rows, part.columns))
            for query, rows, columns in zip(queries, *places):
                wanted[:, rows[:, None] + 4, columns + 4] += weights[:, query]
        if name == 'VARS':
            wanted = recording.layer.reconstruction_norms(*recording.inputs)[-1, 0]
        else:
            wanted = wanted[:, 4:-4, 4:-4] / len(queries)
        np.testing.assert_allclose(received, wanted, rtol=1e-4)


def test_above_threshold() -> None:
    """Stretched from its least value to its largest (VARS, section 4.3)."""
    values = np.array([[12.0, 5, 2], [4, 6, 2]])
    np.testing.assert_array_equal(segmentation.above_threshold(values, 0.3), values > 5)
    np.testing.assert_array_equal(segmentation.above_threshold(values, 0.29), values >= 5)
    assert not segmentation.above_threshold(np.ones((2, 5)), 0.3).any()


def test_scores() -> None:
    """Two of three chosen pixels and of three of the foreground are the same; one pixel has no label."""
    foreground = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], bool)
    chosen = np.array([[1, 1, 0, 1], [0, 0, 0, 1]], bool)
    labelled = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)
    found = segmentation.scores(chosen, segmentation.Sample(Path(), foreground, labelled))
    assert found == pytest.approx(dict(jaccard=2 / 4, miou=(2 / 4 + 3 / 5) / 2, fp=1 / 7, fn=1 / 7))


def test_masks_of_datasets(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Label maps of a segmentor and masks of a detector, whole or of some classes."""
    monkeypatch.chdir(workplace)
    segmentor = load_config('configs/transnext/upernet_micro_ade20k.py', mini=True)
    everything, cars = (list(segmentation.read_dataset(segmentor, classes, 3)) for classes in (None, ['car']))
    assert len(everything) == 3
    folder = 'data/mini/ADEChallengeData2016/annotations/validation'
    labels = cv2.imread(f'{folder}/{everything[0].image.stem}.png', cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(everything[0].labelled, labels > 0)
    np.testing.assert_array_equal(everything[0].foreground, labels > 0)
    np.testing.assert_array_equal(cars[0].foreground, labels == 21)  # of the 150 classes it is the 21st

    detector = load_config('configs/transnext/mask_rcnn_tiny_coco.py', mini=True)
    objects, people = (list(segmentation.read_dataset(detector, classes, 3)) for classes in (None, ['person']))
    for whole, part in zip(objects, people):
        height, width = cv2.imread(str(whole.image)).shape[:2]
        assert whole.foreground.shape == (height, width) == whole.labelled.shape and whole.labelled.all()
        assert whole.foreground.any() and (part.foreground <= whole.foreground).all()
    with pytest.raises(InputError, match='no class unicorn: expected some of person, bicycle'):
        next(segmentation.read_dataset(detector, ['unicorn'], 1))
    classifier = load_config('configs/transnext/transnext-micro_8xb128_in1k.py', mini=True)
    with pytest.raises(InputError, match='names no images with masks'):
        next(segmentation.read_dataset(classifier, None, 1))


def test_tool_on_folders(images: Path, tmp_path: Path, tool: InProcess, run: Callable) -> None:
    """A part of the right half is an object, one row has no label."""
    masks, labels = tmp_path / 'masks', np.zeros((40, 60), np.uint8)
    masks.mkdir()
    labels[10:30, 30:55], labels[0] = 7, 255
    for image in images.glob('*.png'):
        cv2.imwrite(str(masks / image.name), labels)
    both = (write_config(tmp_path, 'GABViT'), '--timm', 'test_vit')
    options = ('--images', images, '--masks', masks, '--size', 64, 96, '--max-images')
    printed, document, rows, _ = run('attention_segmentation', *both, *options, 2, '--layer', 0, -1)
    layers = [('gabvit', '0'), ('gabvit', '2'), ('test_vit', '0'), ('test_vit', '5')]
    heads = [(*layer, head) for layer in layers for head in ('mean', '0', '1')]
    assert [(row['model'], row['layer'], row['head']) for row in rows] == heads
    assert all(0 <= float(row['jaccard']) < 1 and 0 < float(row['miou']) < 1 for row in rows)
    # 20 x 25 pixels of 39 x 60.
    share = 500 / (39 * 60)
    assert document['everything'] == pytest.approx(dict(jaccard=share, miou=share / 2, fp=1 - share, fn=0))
    assert f'{100 * share:.1f}' in printed and 'attention above 0.3' in printed
    first = min(masks.glob('*.png'))
    for labels, message in (
        (np.ones((20, 30), np.uint8), f'the mask of {images / first.name} has 30 x 20 pixels, the image 60 x 40'),
        (np.full((40, 60), 255, np.uint8), 'no image has foreground or fixations'),
    ):
        cv2.imwrite(str(first), labels)
        words = ('analysis/attention_segmentation.py', *both[1:], *options, 1, *ON_CPU, '--out', 'refused')
        assert message in tool.refused(tmp_path, *words)


def test_scanpath_saliency() -> None:
    """Means of the standardised map at the fixated pixels, whatever its offset and scale."""
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 9.0]])  # mean 4, variance 40 / 6
    fixated = np.array([[0, 0, 0], [0, 1, 1]], bool)
    wanted = ((5 - 4) + (9 - 4)) / 2 / (40 / 6) ** 0.5
    assert segmentation.scanpath_saliency(values, fixated) == pytest.approx(wanted)
    assert segmentation.scanpath_saliency(10 + 3 * values, fixated) == pytest.approx(wanted)
    assert segmentation.scanpath_saliency(values, np.ones((2, 3), bool)) == pytest.approx(0)
    assert np.isnan(segmentation.scanpath_saliency(np.ones((2, 3)), fixated))


def test_eye_fixations_in_the_layout_of_mit1003(images: Path, tmp_path: Path, run: Callable) -> None:
    folder = tmp_path / 'ALLFIXATIONMAPS'
    folder.mkdir()
    for image in images.glob('*.png'):
        points = np.zeros((40, 60), np.uint8)
        points[8:16, 16:24] = 255  # a block of JPEG, which is exact
        cv2.imwrite(str(folder / f'{image.stem}_fixPts.jpg'), points)
    samples = list(segmentation.read_fixations(str(images), str(folder), 2))
    assert len(samples) == 2 and all(sample.foreground.sum() == 64 and sample.foreground[8, 16] for sample in samples)

    options = ('--images', images, '--fixations', folder, '--max-images', 2, '--size', 64, 96, '--layer', -1)
    printed, _, rows, _ = run('attention_segmentation', write_config(tmp_path, 'VARS'), *options)
    assert [row['head'] for row in rows][:2] == ['mean', '0'] and all(-5 < float(row['nss']) < 5 for row in rows)
    assert 'normalised scanpath saliency' in printed and f'{float(rows[0]["nss"]):.3f}' in printed

    first = folder / f'{samples[0].image.stem}_fixPts.jpg'
    cv2.imwrite(str(first), points[:8])
    with pytest.raises(InputError, match='has 60 x 8 pixels: expected 60 x 40'):
        next(segmentation.read_fixations(str(images), str(folder), 1))
    first.unlink()
    with pytest.raises(InputError, match='no fixations of .*: expected the image .*_fixPts.jpg'):
        next(segmentation.read_fixations(str(images), str(folder), 1))


def test_label_maps_of_pascal_voc(images: Path, tmp_path: Path) -> None:
    """Palettes, whose index 255, a border in a light colour, does not count, and a list of names."""
    second, split = sorted(images.glob('*.png'))[1], tmp_path / 'val.txt'

    def samples(names: str) -> list[segmentation.Sample]:
        split.write_text(names)
        return list(segmentation.read_masks(str(images), str(tmp_path), 10, str(split)))

    labels = np.zeros((40, 60), np.uint8)
    labels[10:30, 30:55], labels[9] = 7, 255
    file = PIL.Image.fromarray(labels, 'P')
    file.putpalette([(37 * index) % 255 for index in range(768)])
    file.save(tmp_path / second.name)
    (sample,) = samples(f'a dog\n {second.stem} \n')
    assert sample.image == second
    np.testing.assert_array_equal(sample.foreground, labels == 7)
    np.testing.assert_array_equal(sample.labelled, labels != 255)
    # A mask of colours has no indices. Every pixel that is not black is foreground, though one channel may be 255,
    # the index that does not count elsewhere; opacity says nothing.
    colours = np.zeros((40, 60, 4), np.uint8)
    colours[10:20, 30:55, 0], colours[20:30, 30:55, 1], colours[..., 3] = 255, 128, 255
    for mode in ('RGBA', 'RGB'):
        PIL.Image.fromarray(colours).convert(mode).save(tmp_path / second.name)
        (sample,) = samples(second.stem)
        np.testing.assert_array_equal(sample.foreground, labels == 7)
        assert sample.labelled.all()
    with pytest.raises(InputError, match='no image of .*val.txt is in'):
        samples('another\n')
    with pytest.raises(InputError, match='no list of images: expected the file absent.txt'):
        next(segmentation.read_masks(str(images), str(tmp_path), 10, 'absent.txt'))
