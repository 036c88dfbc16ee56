"""ImageNet's test sets, input sizes and attacks of classifiers, through the tools as a user calls them."""

import json
import re
import runpy
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from torch import Tensor

from bioattn_mm.data.classification import ALEXNET_ERRORS, wordnet_labels
from bioattn_mm.errors import InputError

from .running import ROOT, InProcess, metrics_of_test, read_csv

SIDE, CROP = 40, 32  # pixels
CLASSIFIER = f"""
_base_ = '{ROOT}/configs/transnext/transnext-micro_8xb128_in1k.py'
channels = (8, 16, 16, 16)
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=channels, num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1))),
    head=dict(in_channels=16),
)
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale={SIDE}, backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size={CROP}),
    dict(type='PackInputs'),
]
test_dataloader = dict(num_workers=0, persistent_workers=False, batch_size=4, dataset=dict(pipeline=test_pipeline))
"""
BARE = """
data_preprocessor = dict(num_classes=1000, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
model = dict(
    type='ImageClassifier',
    backbone=dict(type='ResNet', depth=18, stem_channels=8, base_channels=8),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=1000, in_channels=64),
)
default_scope = 'mmpretrain'
test_dataloader = dict(dataset=dict(type='ImageNet', data_root='nowhere', split='val', pipeline=[]))
test_evaluator = dict(type='Accuracy', topk=(1, 5))
"""
WORDNET_IDS = list(wordnet_labels())
SEVERITIES = (1, 2, 3, 4, 5)


@pytest.fixture(scope='module')
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the config and random weights of a small classifier of the 1000 classes."""
    folder = tmp_path_factory.mktemp('imagenet')
    (folder / 'small.py').write_text(CLASSIFIER)
    torch.manual_seed(1)
    model = build(folder)
    model.head.fc.weight.data.normal_()
    torch.save(dict(state_dict=model.state_dict()), folder / 'small.pth')
    return folder


def build(folder: Path) -> torch.nn.Module:
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        return MODELS.build(Config.fromfile(folder / 'small.py').model).eval()


def random_images(count: int, side: int) -> np.ndarray:
    """RGB images that differ in colour and in their coarse pattern, uint8 (count, side, side, 3)."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (count, 2, 2, 3)).repeat(side // 2, 1).repeat(side // 2, 2)
    return np.clip(coarse + generator.integers(-20, 21, coarse.shape), 0, 255).astype(np.uint8)


@torch.no_grad()
def logits(folder: Path, images: np.ndarray) -> Tensor:
    """The model's logits of RGB images (N, H, W, 3): (N, 1000)."""
    model = build(folder)
    model.load_state_dict(torch.load(folder / 'small.pth')['state_dict'])
    batch = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    return model((batch - model.data_preprocessor.mean) / model.data_preprocessor.std)


def centre(images: np.ndarray) -> np.ndarray:
    margin = (SIDE - CROP) // 2
    return images[:, margin : margin + CROP, margin : margin + CROP]


def save(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


@pytest.mark.parametrize(
    ('name', 'data_root', 'names', 'options'),
    [
        ('r', 'data/imagenet-r', WORDNET_IDS, ()),
        ('a', 'elsewhere/a', WORDNET_IDS, ('--test-root', 'elsewhere/a')),
        ('v2', 'data/imagenetv2-matched-frequency-format-val', [*map(str, range(1000))], ()),
    ],
)
def test_predictions_are_among_the_classes_of_the_set(
    name: str, data_root: str, names: list, options: tuple, place: Path, tool: InProcess, tmp_path: Path
) -> None:
    """Half of the images are right among the set's classes, and none among all, where other classes have more."""
    images = random_images(12, SIDE)
    scores = logits(place, centre(images))
    # The classes 2 and 10, whose names are in another order than they, and 18 others.
    subset = torch.tensor([2, 10, *range(15, 1000, 55)])
    best, worst = subset[scores[:, subset].argmax(1)], subset[scores[:, subset].argmin(1)]
    assert not (scores.argmax(1) == best).any()
    for label in subset:
        save(place / data_root / names[label] / 'in_every_folder.png', images[0])
    for index, image in enumerate(images):
        label = best[index] if index % 2 else worst[index]
        save(place / data_root / names[label] / f'{index}.png', image)
    work_dir = ('--work-dir', tmp_path / 'work')
    printed = tool(place, 'test.py', 'small.py', 'small.pth', '--test-set', name, *work_dir, *options)
    # And the image of all folders, in that of its best class.
    expected = 100 * (len(images) // 2 + 1) / (len(images) + len(subset))
    assert metrics_of_test(tmp_path / 'work')['accuracy/top1'] == pytest.approx(expected)
    assert f'accuracy/top1 {expected:.4g}' in printed


def is_right(corruption: str, severity: int) -> bool:
    """Whether the one image of a corruption and severity is in the folder of its predicted class."""
    return (len(corruption) + severity) % 3 > 0


@pytest.fixture(scope='module')
def imagenet_c(place: Path) -> Path:
    """ImageNet-C with one image, of the crop's size, for each of its folders; noise is in a folder of its own."""
    folder = place / 'data/imagenet-c'
    images = random_images(len(ALEXNET_ERRORS) * len(SEVERITIES), CROP)
    labels = iter(zip(images, logits(place, images).argmax(1)))
    for corruption in ALEXNET_ERRORS:
        category = folder / 'noise' if corruption.endswith('noise') else folder
        for severity in SEVERITIES:
            image, label = next(labels)
            name = WORDNET_IDS[label if is_right(corruption, severity) else label - 1]
            save(category / corruption / str(severity) / name / 'image.png', image)
    return folder


def test_imagenet_c_as_files(imagenet_c: Path, place: Path, tool: InProcess, tmp_path: Path) -> None:
    """Images are tested whole, and the errors are in percent of AlexNet's."""
    printed = tool(place, 'test.py', 'small.py', 'small.pth', '--test-set', 'c', '--work-dir', tmp_path / 'work')
    metrics = metrics_of_test(tmp_path / 'work')
    ratios = []
    for corruption, error in ALEXNET_ERRORS.items():
        accuracy = 20 * sum(is_right(corruption, severity) for severity in SEVERITIES)
        assert metrics[f'imagenet_c/{corruption}'] == pytest.approx(accuracy)
        ratios.append((100 - accuracy) / error)
    assert metrics['imagenet_c/mCE'] == pytest.approx(100 * np.mean(ratios))
    assert f'imagenet_c/mCE {100 * np.mean(ratios):.4g}' in printed


def test_some_of_imagenet_c_and_their_mean(imagenet_c: Path, place: Path, tool: InProcess, tmp_path: Path) -> None:
    """robustness.py on the same files: without mCE if not all are there."""
    write_validation_set(place, random_images(4, SIDE))
    tool(
        place, 'analysis/robustness.py', 'small.py', 'small.pth', '--imagenet-c', imagenet_c, '--corruptions',
        'shot_noise', 'snow', '--severities', 1, 2, 3, '--out', tmp_path / 'out',
    )  # fmt: skip
    (model,) = json.loads((tmp_path / 'out/robustness.json').read_text())['models']
    means = {name: 100 * np.mean([is_right(name, level) for level in (1, 2, 3)]) for name in ('shot_noise', 'snow')}
    assert model['corruptions'] == pytest.approx(means)
    assert model['clean'] == 100 and model['mPC'] == pytest.approx(np.mean(list(means.values())))
    assert 'mCE' not in model


def write_validation_set(place: Path, images: np.ndarray, labels: list[int] | None = None) -> None:
    """The labels are the model's predictions, unless there are others."""
    labels = logits(place, centre(images)).argmax(1).tolist() if labels is None else labels
    for index, image in enumerate(images):
        save(place / f'data/imagenet/val/{index}.png', image)
    (place / 'data/imagenet/meta').mkdir(exist_ok=True)
    lines = [f'{index}.png {label}\n' for index, label in enumerate(labels)]
    (place / 'data/imagenet/meta/val.txt').write_text(''.join(lines))


def test_attacks_on_a_classifier(place: Path, tool: InProcess, tmp_path: Path) -> None:
    write_validation_set(place, random_images(12, SIDE))
    call = (
        'analysis/robustness.py', 'small.py', 'small.pth', '--attack', 'fgsm', 'pgd', '--epsilon', '1/255',
        '0.0313725490196', '--steps', 3, '--out', tmp_path / 'out',
    )  # fmt: skip
    printed = tool(place, *call)
    rows = read_csv(tmp_path / 'out/robustness.csv')
    conditions = [('none', '0'), *((name, epsilon) for name in ('fgsm', 'pgd') for epsilon in ('1/255', '8/255'))]
    assert [(row['attack'], row['epsilon']) for row in rows] == conditions
    values = {pair: float(row['value']) for pair, row in zip(conditions, rows)}
    assert values['none', '0'] == 100
    for name in ('fgsm', 'pgd'):
        assert 100 >= values[name, '1/255'] > values[name, '8/255']
    document = json.loads((tmp_path / 'out/robustness.json').read_text())
    assert document['models'][0]['attacks']['pgd'] == {e: values['pgd', e] for e in ('1/255', '8/255')}
    assert document['steps'] == 3
    assert np.asarray(Image.open(tmp_path / 'out/robustness.png').convert('L')).std() > 10
    assert 'accuracy/top1 under attack' in printed
    assert 'out/results has results with --steps 3: ask for the same' in tool.error(place, *call, '--steps', 2)
    line = tool.error(place, *call[:3], '--out', tmp_path / 'out')
    assert 'out/results has results with --attack fgsm pgd: ask for the same' in line


CROPS = {
    224: [('ResizeEdge', 256), ('CenterCrop', 224)],
    320: [('ResizeEdge', 365), ('CenterCrop', 320)],
    384: [('Resize', (384, 384))],
}


@pytest.mark.parametrize(('size', 'steps'), CROPS.items())
def test_crops_of_an_input_size(size: int, steps: list) -> None:
    """As TransNeXt's authors resize and crop; the rest of the pipeline stays."""
    config = Config.fromfile(f'{ROOT}/configs/transnext/transnext-micro_8xb128_in1k.py')
    pipeline = config.test_dataloader.dataset.pipeline
    set_crop_size = runpy.run_path(f'{ROOT}/tools/analysis/benchmark_extrapolation.py')['set_crop_size']
    set_crop_size(pipeline, 640)  # what is resized whole can be cropped again
    set_crop_size(pipeline, size)
    assert [(step['type'], step.get('scale', step.get('crop_size'))) for step in pipeline[1:-1]] == steps
    assert pipeline[1]['interpolation'] == 'bicubic' and pipeline[1]['backend'] == 'pillow'
    assert [pipeline[0]['type'], pipeline[-1]['type']] == ['LoadImageFromFile', 'PackInputs']


def test_accuracy_against_input_size(place: Path, tool: InProcess, tmp_path: Path) -> None:
    """One checkpoint with each position bias, and classifiers of mmpretrain and timm beside it."""
    model = timm.create_model('test_convnext').eval()
    torch.nn.init.normal_(model.head.fc.weight)  # so that not all images are of one class
    torch.save(model.state_dict(), place / 'timm.pth')
    # Images of which 224 / 256 are the crop, and of which the model of timm is right about all.
    images = random_images(4, 256)
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ('mean', 'std'))
    with torch.no_grad():
        batch = torch.from_numpy(images[:, 16:240, 16:240]).permute(0, 3, 1, 2) / 255
        write_validation_set(place, images, model((batch - mean) / std).argmax(1).tolist())
    # mmpretrain's own configs name the normalisation outside of the model.
    (place / 'bare.py').write_text(BARE)
    torch.manual_seed(2)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        torch.save(MODELS.build(Config.fromfile(place / 'bare.py').model).state_dict(), place / 'bare.pth')
    tool(
        place, 'analysis/benchmark_extrapolation.py', 'small.py', 'small.pth', '--sizes', 64, 224,
        '--modes', 'linear', 'extrapolate', 'unscaled', '--compare', 'bare.py', 'bare.pth',
        '--timm', 'test_convnext', 'timm.pth', '--out', tmp_path / 'out',
    )  # fmt: skip
    rows = read_csv(tmp_path / 'out/table.csv')
    models = *(('small', mode) for mode in ('linear', 'extrapolate', 'unscaled')), ('bare', ''), ('test_convnext', '')
    assert [(row['model'], row['bias_mode'], row['size']) for row in rows] == [
        (*model, size) for model in models for size in ('64', '224')
    ]
    # At the training size the linear mode's pooled grid is the grid of the others, and the length that of training.
    assert rows[1]['value'] == rows[3]['value'] == rows[5]['value'] != '100.0' == rows[-1]['value']

    call = ('analysis/benchmark_extrapolation.py', 'small.py', 'small.pth', '--out', tmp_path / 'none', '--sizes', 64)
    line = tool.refused(place, *call, '--compare', 'bare.py', 'small.pth')
    assert 'small.pth is not a checkpoint of this model' in line
    read_entrants = runpy.run_path(str(ROOT / 'tools' / call[0]))['read_entrants']
    args = dict(config='bare.py', checkpoint='bare.pth', compare=[], timm=[], mini=False)
    with pytest.raises(InputError, match=r'--modes is for bioattn_mm.TransNeXt'):
        read_entrants(Namespace(**args, modes=['linear']), Config.fromfile('bare.py'))


ROBUSTNESS = 'analysis/robustness.py small.py small.pth --out out'
REFUSED = {
    'test.py small.py small.pth --test-set sketch': 'no data for ImageNetSketch at data/sketch .*; download them as ',
    'test.py small.py small.pth --test-set r --test-root data': 'data/.* is not named after a class of ImageNet-1k',
    'test.py small.py small.pth --test-set c --test-root .': 'no folder gaussian_noise/1 in ., nor one level deeper',
    'test.py small.py small.pth --test-root data': '--test-root is the folder of --test-set: name that, too',
    'test.py small.py small.pth --test-set a --mini': '--test-set names the images itself: leave out --mini',
    f'test.py {ROOT}/configs/transnext/upernet_tiny_ade20k.py small.pth --test-set r': '.* is a config of mmseg',
    f'{ROBUSTNESS} --attack pgd --severities 1': '--attack takes no corruptions',
    f'{ROBUSTNESS} --epsilon 1/255': '--epsilon is an option of --attack: add that',
    f'{ROBUSTNESS} --attack fgsm --steps 3': '--steps is an option of --attack pgd: add that',
    f'{ROBUSTNESS} --attack fgsm --epsilon 4': '--epsilon must be a part of the pixel range, such as 4/255',
    f'{ROBUSTNESS} --imagenet-c data/imagenet': 'no folder gaussian_noise/1 in data/imagenet',
}


@pytest.mark.parametrize(('call', 'message'), REFUSED.items(), ids=REFUSED)
def test_refuses_in_one_line(call: str, message: str, place: Path, tool: InProcess, tmp_path: Path) -> None:
    write_validation_set(place, random_images(4, SIDE))
    options = ('--work-dir', tmp_path) if call.startswith('test.py') else ()
    assert re.match(f'error: {message}', tool.refused(place, *call.split(), *options))
