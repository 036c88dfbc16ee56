"""Classifiers of ImageNet: trained, tested, drawn and attacked, on ImageNet-A, -C, -R and V2, at several sizes."""

import json
import pickle
import re
import runpy
from argparse import Namespace
from pathlib import Path

import mmcv
import mmpretrain
import numpy as np
import pytest
import timm
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from torch import Tensor

from bioattn_mm.analysis.evaluation import TrainedModel
from bioattn_mm.data.classification import ALEXNET_ERRORS, wordnet_labels
from bioattn_mm.errors import InputError

from .. import parity
from ..conftest import NUM_VAL
from .running import ROOT, InProcess, last_validation, metrics_of_test, read_csv
from .small_images import NO_WORKERS

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
# An average of the weights is validated.
custom_hooks = [*_base_.custom_hooks, dict(type='bioattn_mm.ShardableEMAHook', momentum=1e-4)]
dataset = dict(pipeline=test_pipeline)
val_dataloader = test_dataloader = dict(num_workers=0, persistent_workers=False, batch_size=4, dataset=dataset)
"""
# mmpretrain's own configs name the normalisation outside of the model.
BARE = f'{Path(mmpretrain.__file__).parent}/.mim/configs/resnet/resnet18_8xb32_in1k.py'
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


def test_what_was_validated_is_tested_written_and_drawn(place, workplace, tool: InProcess, tmp_path: Path) -> None:
    config, trained = place / 'small.py', tmp_path / 'trained'
    tool(
        workplace, 'train.py', config, '--mini', '--work-dir', trained, '--cfg-options', 'train_cfg.max_iters=15',
        'train_cfg.val_interval=15', 'default_hooks.checkpoint.interval=15', 'param_scheduler.0.end=2',
        'param_scheduler.1.begin=2', 'param_scheduler.1.end=15', 'optim_wrapper.optimizer.lr=2e-3', *NO_WORKERS,
    )  # fmt: skip
    arguments = ('test.py', config, trained / 'iter_15.pth', '--mini')
    tool(workplace, *arguments, '--work-dir', tmp_path / 'test', '--out', tmp_path / 'out.pkl')
    metrics = metrics_of_test(tmp_path / 'test')
    # The average of the weights was validated, is in the checkpoint, and is tested.
    assert metrics == last_validation(trained)
    predictions = pickle.loads((tmp_path / 'out.pkl').read_bytes())
    right = [prediction['pred_label'].item() == prediction['gt_label'].item() for prediction in predictions]
    assert len(right) == NUM_VAL and 100 * np.mean(right) == pytest.approx(metrics['accuracy/top1'])

    tool(
        workplace, *arguments, '--tta', '--out', tmp_path / 'flipped.pkl', '--show-dir', tmp_path / 'drawn',
        '--work-dir', tmp_path / 'tta', '--cfg-options', 'test_dataloader.dataset.indices=4',
    )  # fmt: skip
    flipped = pickle.loads((tmp_path / 'flipped.pkl').read_bytes())
    assert all(0 < (a['pred_score'] - b['pred_score']).abs().max() < 1 for a, b in zip(predictions, flipped))
    drawn = [path for path in (tmp_path / 'drawn').rglob('*.png') if path.name != 'predictions.png']
    assert len(drawn) == len(flipped) == 4 and (tmp_path / 'drawn/predictions.png').exists()
    for path in drawn:
        (source,) = workplace.glob(f'data/mini/imagenet/val/*/{path.stem.rpartition("_")[0]}.JPEG')
        image, drawing = mmcv.imread(str(source)), mmcv.imread(str(path))
        lower = [pixels[len(pixels) // 2 :].mean((0, 1)) for pixels in (image, drawing)]
        assert np.abs(lower[0] - lower[1]).max() < 3  # no text there, and the colours are right


def test_a_file_of_the_authors(workplace: Path, tool: InProcess, tmp_path: Path) -> None:
    """It is tested as the model is that starts from it, also by a config without a visualizer."""
    config = Config.fromfile(ROOT / 'configs/convit/convit-tiny_8xb128_in1k.py')
    config.pop('visualizer')
    config.dump(tmp_path / 'convit.py')
    torch.save({'model': parity.released_state_dict('convit_tiny'), 'epoch': 299}, tmp_path / 'released.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'released.pth'))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(dict(config.model, init_cfg=init_cfg))
    model.init_weights()
    torch.save(model.state_dict(), tmp_path / 'own.pth')
    few = ('--cfg-options', 'test_dataloader.dataset.indices=2', *NO_WORKERS)
    for name in ('released', 'own'):
        options = ('--work-dir', tmp_path / name, '--out', tmp_path / f'{name}.pkl')
        tool(workplace, 'test.py', tmp_path / 'convit.py', tmp_path / f'{name}.pth', '--mini', *options, *few)
    released, own = (pickle.loads((tmp_path / f'{name}.pkl').read_bytes()) for name in ('released', 'own'))
    assert all(torch.equal(a['pred_score'], b['pred_score']) for a, b in zip(released, own, strict=True))
    assert released[0]['pred_score'].std() > 1e-5


def test_images_without_classes(tool: InProcess, tmp_path: Path) -> None:
    """As the archive of the validation images unpacks."""
    config = ROOT / 'configs/convit/convit-tiny_8xb128_in1k.py'
    for split in ('train', 'val'):
        (tmp_path / 'data/imagenet' / split).mkdir(parents=True)
    assert 'The number of subfolders (0) doesn' in tool.error(tmp_path, 'train.py', config)


@pytest.mark.parametrize(('name', 'data_root', 'names', 'options'), [
    ('r', 'data/imagenet-r', WORDNET_IDS, ()),
    ('a', 'elsewhere/a', WORDNET_IDS, ('--test-root', 'elsewhere/a')),
    ('v2', 'data/imagenetv2-matched-frequency-format-val', [*map(str, range(1000))], ()),
])  # fmt: skip
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


EXTRAPOLATION = 'analysis/benchmark_extrapolation.py'
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
    functions = runpy.run_path(f'{ROOT}/tools/{EXTRAPOLATION}')
    functions['set_crop_size'](pipeline, 640)  # what is resized whole can be cropped again
    functions['set_crop_size'](pipeline, size)
    assert [(step['type'], step.get('scale', step.get('crop_size'))) for step in pipeline[1:-1]] == steps
    assert pipeline[1]['interpolation'] == 'bicubic' and pipeline[1]['backend'] == 'pillow'
    assert [pipeline[0]['type'], pipeline[-1]['type']] == ['LoadImageFromFile', 'PackInputs']
    functions['set_size'](whole := [dict(type='Resize', scale=(2048, 512))], size)  # of a segmentor
    assert whole == [dict(type='Resize', scale=(100 * size, size), keep_ratio=True)]


def test_accuracy_against_input_size(place: Path, tool: InProcess, tmp_path: Path, monkeypatch) -> None:
    """One checkpoint with each position bias, and classifiers of mmpretrain and timm beside it."""
    tested, test = [], TrainedModel.test
    spy = lambda model, config, *hooks: tested.append(config.model) or test(model, config, *hooks)  # noqa: E731
    monkeypatch.setattr(TrainedModel, 'test', spy)
    model = timm.create_model('test_convnext').eval()
    torch.nn.init.normal_(model.head.fc.weight)  # so that not all images are of one class
    torch.save(model.state_dict(), place / 'timm.pth')
    # Images of which 224 / 256 are the crop, and of which the model of timm is right about all.
    images = random_images(4, 256)
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ('mean', 'std'))
    with torch.no_grad():
        batch = torch.from_numpy(images[:, 16:240, 16:240]).permute(0, 3, 1, 2) / 255
        write_validation_set(place, images, model((batch - mean) / std).argmax(1).tolist())
    torch.manual_seed(2)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        torch.save(MODELS.build(Config.fromfile(BARE).model).state_dict(), place / 'bare.pth')
    tool(
        place, EXTRAPOLATION, 'small.py', 'small.pth', '--sizes', 64, 224, '--compare', BARE, 'bare.pth',
        '--timm', 'test_convnext', 'timm.pth', '--out', tmp_path / 'out',
    )  # fmt: skip
    rows = read_csv(tmp_path / 'out/table.csv')
    modes = ('extrapolate', 'interpolate', 'linear', 'unscaled')
    models = *(('small', mode) for mode in modes), (Path(BARE).stem, ''), ('test_convnext', '')
    assert [(row['model'], row['bias_mode'], row['size']) for row in rows] == [
        (*model, size) for model in models for size in ('64', '224')
    ]
    # At the training size the linear mode's pooled grid is the grid of the others, and the length that of training.
    assert len({row['value'] for row in rows[1:8:2]}) == 1 and rows[1]['value'] != '100.0' == rows[-1]['value']
    assert len({str(model.backbone) for model in tested[:8:2]}) == len(modes)
    assert all(float(row['seconds_per_image']) > 0 for row in rows)
    assert mmcv.imread(str(tmp_path / 'out/plot.png')).std() > 10

    options = ('--out', tmp_path / 'none', '--sizes', 64)
    line = tool.refused(place, EXTRAPOLATION, 'small.py', 'small.pth', *options, '--compare', BARE, 'small.pth')
    assert 'small.pth is not a checkpoint of this model' in line
    read_entrants = runpy.run_path(f'{ROOT}/tools/{EXTRAPOLATION}')['read_entrants']
    args = Namespace(config=BARE, checkpoint='bare.pth', compare=[], timm=[], mini=False, modes=['linear'])
    with pytest.raises(InputError, match='--modes is for bioattn_mm.TransNeXt'):
        read_entrants(args, Config.fromfile(BARE))


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
