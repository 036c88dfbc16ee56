"""tools/analysis/robustness.py: mPC and rPC of two models, going on after an end, and what it refuses."""

import json
import re
from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict

from bioattn_mm.analysis.evaluation import TrainedModel
from bioattn_mm.analysis.robustness import Attacks, Results, insert_corruption, summarize
from bioattn_mm.data.classification import ALEXNET_ERRORS
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.pipelines import LOAD_CHANNELS

from .random_weights import random_checkpoint
from .running import ROOT, InProcess, read_csv
from .small_images import DETECTOR, NO_WORKERS

SMALL = ROOT / 'tests' / 'tools' / 'upernet_small.py'
TOOL = 'analysis/robustness.py'
IMAGES = ('--mini', '--cfg-options', *NO_WORKERS, 'test_dataloader.dataset.indices=3')
FEW = ' '.join(IMAGES)


def test_summary_of_a_model_that_is_never_right_and_of_alexnet() -> None:
    assert np.isnan(summarize(0.0, {('fog', 1): 20.0})['rPC'])
    of_alexnet = {(name, severity): 100 - error for name, error in ALEXNET_ERRORS.items() for severity in range(1, 6)}
    assert summarize(50.0, of_alexnet, on_imagenet=True)['mCE'] == pytest.approx(100)
    assert 'mCE' not in summarize(50.0, of_alexnet)


@pytest.mark.parametrize(('name', 'place'), [('upernet', 1), ('mask_rcnn', 1), ('convit', 3)])
def test_corruption_comes_after_loading_or_a_classifiers_crop(name: str, place: int) -> None:
    config = Config.fromfile(ROOT / f'tests/tools/{name}_small.py')
    before = [step['type'] for step in config.test_dataloader.dataset.pipeline]
    insert_corruption(config, 'fog', 2)
    pipeline = config.test_dataloader.dataset.pipeline
    assert pipeline.pop(place) == dict(type='bioattn_mm.Corrupt', corruption='fog', severity=2)
    assert [step['type'] for step in pipeline] == before
    del pipeline[0]
    with pytest.raises(InputError, match='must load images once'):
        insert_corruption(config, 'fog', 2)


def test_images_of_other_kinds() -> None:
    config = Config.fromfile(SMALL)
    load = ConfigDict(type=LOAD_CHANNELS, channels=4, dtype='uint8')
    config.test_dataloader.dataset.pipeline[0] = load
    with pytest.raises(InputError, match=r'for RGB images in 8 bits: .*upernet_small.py have 4 channels of uint8'):
        insert_corruption(config, 'fog', 2)
    attacks = Attacks(['fgsm'], ['1/255'])
    assert attacks.change(config, 'fgsm', '1/255')
    load.dtype = 'uint16'
    with pytest.raises(InputError, match=r'for images in 8 bits: .*upernet_small.py have 4 channels of uint16'):
        attacks.change(config, 'fgsm', '1/255')


def test_results_of_a_url(tmp_path: Path) -> None:
    """Which has no file: its weights tell it from others."""
    url, weights = 'https://example.org/a.pth', dict(a=torch.ones(2, dtype=torch.bfloat16), b=torch.tensor(1))
    config = Config(dict(model=dict()))
    Results(tmp_path, dict(a=TrainedModel(config, url, weights)), {})
    Results(tmp_path, dict(a=TrainedModel(config, url, dict(weights))), {})
    with pytest.raises(InputError, match=r'results of a with another checkpoint \(https://example.org/a.pth\)'):
        Results(tmp_path, dict(a=TrainedModel(config, url, dict(weights, b=torch.tensor(2)))), {})


TWO_MODELS = (
    TOOL, str(SMALL), 'random_0.pth', '--compare', 'on_training.py', 'random_1.pth', '--out', 'robustness',
    '--corruptions', 'gaussian_noise', 'contrast', '--severities', '5', *IMAGES,
)  # fmt: skip


@pytest.fixture
def done(workplace: Path, tool: InProcess) -> Path:
    """A folder with the results of two models of random weights; the first test makes it."""
    if not (workplace / 'robustness').exists():
        for seed in range(2):
            random_checkpoint(workplace / f'random_{seed}.pth', str(SMALL), seed=seed)
        prefix = dict(img_path='images/training', seg_map_path='annotations/training')
        dataloader = dict(dataset=dict(data_prefix=prefix))
        (workplace / 'on_training.py').write_text(f"_base_ = '{SMALL}'\ntest_dataloader = {dataloader}")
        printed = tool(workplace, *TWO_MODELS)
        # Its images are others.
        assert 'mPC' in printed and re.search('(?m)^on_training is tested on .*images/training', printed)
    return workplace / 'robustness'


def test_table_of_two_models(done: Path) -> None:
    document, rows = json.loads((done / 'robustness.json').read_text()), read_csv(done / 'robustness.csv')
    assert document['metric'] == 'mIoU'
    names = ['upernet_small', 'on_training']
    assert [model['model'] for model in document['models']] == names
    for model in document['models']:
        of_model = [row for row in rows if row['model'] == model['model']]
        conditions = [f'{row["corruption"]} {row["severity"]}' for row in of_model]
        assert conditions == ['none 0', 'gaussian_noise 5', 'contrast 5']
        values = [float(row['value']) for row in of_model]
        assert model['clean'] == values[0] > 0
        assert model['mPC'] == pytest.approx(np.mean(values[1:]))
        assert model['rPC'] == pytest.approx(np.mean(values[1:]) / values[0])
        assert model['corruptions']['contrast'] == values[2]
        assert len(set(values)) == 3
        for row, value in zip(of_model, values):
            path = done / 'results' / model['model'] / f'{row["corruption"]}_{row["severity"]}.json'
            assert json.loads(path.read_text())['mIoU'] == value
    assert mmcv.imread(str(done / 'robustness.png')).std() > 10


def test_setting_that_is_varied(done: Path, workplace: Path, tool: InProcess) -> None:
    key = 'test_dataloader.dataset.indices'
    options = ('--corruptions', 'contrast', '--severities', 5, '--out', 'varied', *IMAGES)
    tool(workplace, TOOL, SMALL, 'random_0.pth', '--compare', SMALL, 'random_1.pth', '--vary', key, 3, 1, *options)
    values, unvaried = (
        {(row['model'], row['corruption']): row['value'] for row in read_csv(folder / 'robustness.csv')}
        for folder in (workplace / 'varied', done)
    )
    names = 'upernet_small', 'tools/upernet_small'
    assert {model for model, _ in values} == {f'{name}, {value}' for name in names for value in (3, 1)}
    # 3 is what `IMAGES` names.
    assert all(values['upernet_small, 3', name] == unvaried['upernet_small', name] for name in ('none', 'contrast'))
    assert values['upernet_small, 3', 'contrast'] != values['upernet_small, 1', 'contrast']
    line = tool.refused(workplace, TOOL, SMALL, 'random_0.pth', '--vary', 'model.backbone.none', *options)
    assert re.match('error: --vary model.backbone.none: .*has no such number, so name values$', line)


def test_goes_on_with_what_is_missing(done: Path, workplace: Path, tool: InProcess) -> None:
    written = {path: path.stat().st_mtime_ns for path in (done / 'results').rglob('*_*.json')}
    missing = done / 'results/upernet_small/contrast_5.json'
    missing.unlink()
    tool(workplace, *TWO_MODELS)
    assert len(written) == 6 and [path for path in written if path.stat().st_mtime_ns != written[path]] == [missing]


def test_attack_on_a_segmentor(workplace: Path, tool: InProcess) -> None:
    random_checkpoint(workplace / 'random.pth', str(SMALL))
    printed = tool(
        workplace, TOOL, SMALL, 'random.pth', '--attack', 'pgd', '--epsilon', '8/255', '--steps', 2,
        '--out', 'attacked', *IMAGES,
    )  # fmt: skip
    (model,) = json.loads((workplace / 'attacked/robustness.json').read_text())['models']
    assert model['clean'] > model['attacks']['pgd']['8/255']
    assert 'mIoU under attack' in printed

    line = tool.refused(workplace, TOOL, DETECTOR, 'x.pth', '--attack', 'fgsm', '--out', 'out', '--mini')
    assert re.match(r'error: only classifiers .mmpretrain. and segmentors .mmseg. can be attacked: .*mmdet$', line)


BOTH = 'random_0.pth --compare on_training.py random_1.pth'
REFUSED = {
    f'random_1.pth --compare on_training.py random_1.pth {FEW}': '.*with another checkpoint .random_0.pth.: ',
    f'{BOTH} {FEW} test_dataloader.batch_size=2': '.*/results has results of upernet_small with another config',
    f'random_0.pth {FEW}': 'robustness/results has results of on_training, which is not asked',
    f'{BOTH} --severities 3 {FEW}': '.*/results has results with --severities 5: ask for the same, or name another ',
    f'random_0.pth --vary model.backbone.img_sizes 64 {FEW}': "the model of .* cannot be built: .*'img_sizes'",
    f'absent.pth {FEW}': 'checkpoint not found: absent.pth',
}


@pytest.mark.usefixtures('done')
@pytest.mark.parametrize(('args', 'message'), REFUSED.items())
def test_refuses_in_one_line(args: str, message: str, workplace: Path, tool: InProcess) -> None:
    line = tool.refused(workplace, TOOL, SMALL, '--out', 'robustness', *args.split())
    assert re.match(f'error: {message}', line)
