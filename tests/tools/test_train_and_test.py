"""tools/train.py and tools/test.py: the whole path, with and without `--mini`, of a panoptic model, and bad input.

Without it, a run has the config's own weights, rates, schedules, loops, samplers and norms.
"""

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bioattn_mm import Predictor
from bioattn_mm.data.mini.ade20k import majority_baseline
from bioattn_mm.errors import InputError
from bioattn_mm.mmcv_ops.panoptic import rgb2id

from .. import parity
from ..conftest import NUM_TRAIN, NUM_VAL
from ..needs import needs
from ..own_folders import write_coco_folder
from .random_weights import random_checkpoint
from .running import ROOT, InProcess, last_validation, make_user_folder, metrics_of_test, run_forked, scalars
from .small_images import DETECTOR, NO_WORKERS, small_images, small_training

CONFIG = f'{ROOT}/tests/tools/upernet_narrow.py'
SMALL_PANOPTIC = f'{ROOT}/tests/tools/mask2former_panoptic_small.py'


@pytest.fixture(scope='module')
def trained(workplace: Path) -> Path:
    """The work dir of a miniature run of UperNet with TransNeXt-Micro, shorter than `--mini` alone."""
    run_forked(
        workplace, 'train.py', CONFIG, '--mini', '--work-dir', 'trained', '--cfg-options',
        'train_cfg.max_iters=60', 'train_cfg.val_interval=60', 'param_scheduler.1.end=60',
        'default_hooks.checkpoint.interval=60', *NO_WORKERS,
    )  # fmt: skip
    return workplace / 'trained'


def test_mini_run_learns(trained: Path) -> None:
    losses = [line['loss'] for line in scalars(trained) if 'loss' in line]
    assert np.mean(losses[-3:]) < 0.7 * losses[0]
    _, baseline = majority_baseline(trained.parent / 'data' / 'mini' / 'ADEChallengeData2016')
    assert last_validation(trained)['mIoU'] > 4 * baseline
    (log,) = trained.glob('*/*.log')
    assert re.search(r'Iter\(train\) \[ *10/60\].* eta: \d+:\d\d:\d\d ', log.read_text())


def test_checkpoint_gives_the_same_metric_again(workplace: Path, trained: Path, tool: InProcess) -> None:
    printed = tool(
        workplace, 'test.py', CONFIG, 'trained/iter_60.pth', '--mini',
        '--work-dir', 'tested', '--show-dir', 'images', '--out', 'labels', '--log', 'tensorboard',
    )  # fmt: skip
    tested = metrics_of_test(workplace / 'tested')
    assert 'test/mIoU' in curves_of(workplace / 'tested').Tags()['scalars']  # not where the images are
    assert tested == last_validation(trained)
    assert f'mIoU {tested["mIoU"]:.4g}' in printed.splitlines()[-2]
    assert printed.splitlines()[-1].endswith('images/predictions.png')
    assert mmcv.imread(str(workplace / 'images' / 'predictions.png')).std() > 10
    # Ground truth and prediction are side by side.
    paths = (path for path in (workplace / 'images').rglob('*.png') if path.name != 'predictions.png')
    pairs = [mmcv.imread(str(path)) for path in paths]
    images = map(mmcv.imread, map(str, workplace.glob('data/mini/ADEChallengeData2016/images/validation/*.jpg')))
    assert sorted((len(pair), pair.shape[1] // 2) for pair in pairs) == sorted(image.shape[:2] for image in images)
    assert np.mean([np.not_equal(*np.split(pair, 2, axis=1)).any() for pair in pairs]) > 0.9
    assert len(list((workplace / 'labels').glob('*.png'))) == NUM_VAL


def curves_of(work_dir: Path) -> EventAccumulator:
    (events,) = work_dir.glob('*/vis_data/events.out.tfevents.*')
    return EventAccumulator(str(events)).Reload()


def test_multi_scale_and_flip(workplace: Path, trained: Path, tool: InProcess) -> None:
    tool(
        workplace, 'test.py', CONFIG, 'trained/iter_60.pth', '--mini', '--tta', '--bias-mode', 'linear',
        '--work-dir', 'tta', '--log', 'tensorboard', '--cfg-options', 'test_dataloader.dataset.indices=2',
        *NO_WORKERS,
    )  # fmt: skip
    (point,) = curves_of(workplace / 'tta').Scalars('test/mIoU')
    assert point.value == pytest.approx(metrics_of_test(workplace / 'tta')['mIoU'], rel=1e-4) and point.value > 0


def test_a_fresh_start_overwrites_nothing_and_resume_goes_on(workplace: Path, trained: Path, tool: InProcess) -> None:
    copy = workplace / 'resumed'
    copy.mkdir()
    shutil.copy(trained / 'iter_60.pth', copy)
    (copy / 'last_checkpoint').write_text(str(copy / 'iter_60.pth'))
    again = ('train.py', CONFIG, '--mini', '--work-dir', 'resumed')
    line = tool.refused(workplace, *again)
    assert line.startswith('error: resumed already holds iter_60.pth: add --resume')

    printed = tool(
        workplace, *again, '--resume', '--log', 'tensorboard', '--cfg-options', 'train_cfg.max_iters=62',
        'train_cfg.val_begin=1000', 'default_hooks.logger.interval=1', 'model.backbone.init_cfg.checkpoint=gone.pth',
    )  # fmt: skip
    losses = [(line['step'], line['loss']) for line in scalars(copy) if 'loss' in line]
    assert [step for step, _ in losses] == [61, 62] and (copy / 'iter_62.pth').is_file()

    lines = [json.loads(row) for row in (copy / 'steps.jsonl').read_text().splitlines()]
    assert [line['step'] for line in lines if 'iter' in line] == [61, 62]
    assert lines[0]['start']['resumed'] and lines[-1]['summary']['ended'] == 'finished'
    assert 'health of the run' in printed
    curve = [(event.step, event.value) for event in curves_of(copy).Scalars('loss')]
    assert curve == [(step, pytest.approx(loss, rel=1e-4)) for step, loss in losses]


# Arguments of a tool, and what is said of them; those of train.py and test.py begin with a config.
BEGUN = 'test.py CONFIG small.pth --mini --work-dir wrong --cfg-options'
DRY_RUN = 'train.py CONFIG --mini --dry-run --cfg-options'
NAN = 'nan.pth cannot be used: 1 of its 2 entries have values that are NaN or infinite: weight; '
BAD_INPUT = {
    'train.py README.md': 'README.md is no config: expected a .py',
    'train.py broken.py': 'cannot read the config broken.py: .+',
    'train.py configs/_base_/datasets/ade20k.py': '.*ade20k.py is no config of a model .*: it has no model',
    'train.py CONFIG': 'no data for ADE20KDataset at data/ade/ADEChallengeData2016 .*download .*--mini',
    'test.py CONFIG x.pth --mini': 'checkpoint not found: x.pth',
    'test.py CONFIG README.md --mini': 'cannot read the checkpoint README.md: ',
    'train.py CONFIG --mini --resume x.pth': 'checkpoint to resume from not found: x.pth',
    'train.py CONFIG --mini --resume other.pth': r'.* is not a checkpoint of this model; \d+ missing .*: backbone',
    'train.py CONFIG --mini --strategy none.py': 'strategy not found: none.py',
    'train.py CONFIG --mini --strategy configs/_base_/models/upernet.py': '.*upernet.py is not a strategy: expected',
    'train.py CONFIG --mini --strategy configs/_base_/strategies/fsdp.py': '.*fsdp.py is for several processes: ',
    'train.py CONFIG --mini --amp': 'mixed precision in float16 needs a GPU: on the CPU take bfloat16',
    'train.py CONFIG --mini --cfg-options optim_wrapper.type=AmpOptimWrapper': '.*AmpOptimWrapper needs a GPU',
    'train.py CONFIG --mini --cfg-options optim_wrapper.optimizer.type=AdamX': '.*=AdamX: there is no such optimizer',
    'train.py CONFIG --mini --cfg-options trian_cfg.max_iters=5': ".*no config has 'trian_cfg': did you mean train_c",
    'train.py CONFIG --mini --seed -1': '--seed must be at least 0, got -1$',
    'predict.py CONFIG x.pth image.jpg --mini --score-thr nan': 'argument --score-thr: expected a number from 0 to 1',
    f'test.py {SMALL_PANOPTIC} other.pth --mini --tta': 'multi-scale testing needs tta_model and tta_pipeline',
    f'train.py {SMALL_PANOPTIC} --data data/mini/coco': '.*learns panoptic segmentation: take a config of either',
    f'inspect_data.py {SMALL_PANOPTIC} --mini --out of_panoptic': 'panoptic annotations cannot be inspected',
    'test.py configs/transnext/mask2former_tiny_ade20k_panoptic.py other.pth': '.*docs/training.md says under Data',
    'predict.py CONFIG small.pth': 'nothing to predict on: name images, folders, globs, videos or a cam',
    'predict.py CONFIG': 'no checkpoint: expected CONFIG CHECKPOINT INPUT..., or CONFIG INPUT... with --min',
    'predict.py CONFIG small.pth data --classes sky unicorn': "the model has no class 'unicorn': it knows 150, wall",
    'predict.py CONFIG x.pth data --slide --whole': 'argument --whole: not allowed with argument --slide',
    f'train.py {DETECTOR} --reduce-zero-label': '--reduce-zero-label is for own data: name them with',
    f'train.py {DETECTOR} --data parts --epochs 0': '--epochs must be at least 1, got 0',
    f'train.py {DETECTOR} --data parts --reduce-zero-label': '--reduce-zero-label is for label',
    f'train.py {DETECTOR} --data data/mini/imagenet': "no annotations in COCO's format in data/mini/imagenet",
    f'train.py {DETECTOR} --data parts --mini --load-from wide.pth --cfg-options '
    'model.roi_head.bbox_head.fc_out_channels=32': '.* of another shape: .*roi_head.bbox_head.fc_cls.weight',
    'test.py CONFIG nan.pth --mini': NAN,
    'train.py CONFIG --mini --load-from nan.pth': NAN,
    'train.py CONFIG --mini --load-from nan.pth --cfg-options resume=True': NAN,
    # These begin to run.
    f'{DRY_RUN} train_dataloader.batch_size=1': 'batch normalisation cannot train with a single .*batch_size=1',
    f'{DRY_RUN} model.decode_head.loss_decode.loss_weight=1e39': 'the loss of the first training step is inf$',
    f'{BEGUN} model.backbone.arch.embed_dims=(72,48,96,192)': '.* of another shape: .*file .24, 3, 7, 7., model .72',
    f'{BEGUN} model.test_cfg.mode=whole test_dataloader.dataset.pipeline.1.scale=(64,16) '
    'model.data_preprocessor.test_cfg.size_divisor=1': r'.*H and W of at least 32 pixels, got \(1, 3, 16, ',
    f'{BEGUN} test_dataloader.dataset.data_root=damaged': 'cannot decode .*/ADE_val_00000003',
}


@pytest.mark.parametrize(
    ('call', 'message'),
    [pytest.param(*case, marks=needs('no GPU') if 'GPU' in case[1] else ()) for case in BAD_INPUT.items()],
    ids=BAD_INPUT,
)
def test_bad_input(call: str, message: str, workplace: Path, tool: InProcess) -> None:
    (workplace / 'README.md').write_text('no config, no checkpoint')
    (workplace / 'broken.py').write_text('model = dict(')
    torch.save(dict(state_dict=dict(weight=torch.zeros(3)), meta=dict(seed=1)), workplace / 'other.pth')
    torch.save(dict(weight=torch.tensor([1, float('nan')]), bias=torch.zeros(3)), workplace / 'nan.pth')
    if 'parts' in call:
        write_coco_folder(workplace / 'parts', range(2))
        random_checkpoint(workplace / 'wide.pth', DETECTOR)
    if 'small.pth' in call:
        random_checkpoint(workplace / 'small.pth', CONFIG)
        shutil.copytree(workplace / 'data/mini/ADEChallengeData2016', workplace / 'damaged', dirs_exist_ok=True)
        (workplace / 'damaged/images/validation/ADE_val_00000003.jpg').write_bytes(b'no image')
    run = tool.error if 'wrong' in call else tool.refused
    line = run(workplace, *call.replace('CONFIG', CONFIG).split())
    assert re.match(f'(predict.py: )?error: {message}', line)


def test_operation_without_a_deterministic_kernel(workplace: Path, tool: InProcess, monkeypatch) -> None:
    """As PyTorch reports it on a GPU in the first step."""
    reported = (
        'adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set '
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation."
    )
    monkeypatch.setattr(torch.nn.functional, 'adaptive_avg_pool2d', Mock(side_effect=RuntimeError(reported)))
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    want = 'error: the run would fail: .* adaptive_avg_pool2d_backward_cuda does not have a deterministic '
    try:
        assert re.match(want, tool.error(workplace, 'train.py', CONFIG, '--mini', '--deterministic', '--dry-run'))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


def test_label_maps_of_a_list_of_metrics(tmp_path: Path) -> None:
    """They are written by those that can."""
    set_out = runpy.run_path(str(ROOT / 'tools/test.py'))['set_out']
    metrics = [dict(type='mmseg.IoUMetric'), dict(type='DumpResults')]
    config = Config(dict(default_scope='mmseg', test_evaluator=metrics))
    set_out(config, str(tmp_path / 'labels'))
    assert config.test_evaluator == [dict(metrics[0], output_dir=str(tmp_path / 'labels')), metrics[1]]
    config.test_evaluator = metrics[1:]
    with pytest.raises(InputError, match='--out needs one of IoUMetric, CityscapesMetric, DepthMetric in test_eval'):
        set_out(config, str(tmp_path / 'labels'))


UPERNET, DINO, MASK2FORMER, PANOPTIC = (
    f'configs/transnext/{name}.py'
    for name in ('upernet_micro_ade20k', 'dino_4scale_micro_coco', 'mask2former_micro_ade20k',
                 'mask2former_tiny_ade20k_panoptic')
)  # fmt: skip
WEIGHTS = 'model.backbone.init_cfg.checkpoint=transnext_micro_224_1k.pth'
TWO_EPOCHS = ('train_cfg.max_epochs=2', 'train_dataloader.dataset.indices=4', 'param_scheduler.0.milestones=[1]')
TWO_ITERATIONS = ('train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2')
# Of Mask2Former's head.
SMALL_QUERIES = ('num_queries=20', 'transformer_decoder.num_layers=3', 'pixel_decoder.encoder.num_layers=2')
# What training and testing must agree on: slow heads of the host libraries are made smaller, and get fewer regions.
# Small images have fewer places than DINO has queries.
SMALL_MODEL = {
    UPERNET: ('model.decode_head.channels=64', 'model.auxiliary_head.channels=32'),
    DINO: ('model.num_queries=50', 'model.encoder.num_layers=2', 'model.decoder.num_layers=2'),
    MASK2FORMER: tuple(f'model.decode_head.{option}' for option in SMALL_QUERIES),
    PANOPTIC: (
        'model.backbone.arch=micro', 'model.panoptic_head.in_channels=[48,96,192,384]',
        *(f'model.panoptic_head.{option}' for option in SMALL_QUERIES),
    ),
}  # fmt: skip


@pytest.fixture(scope='module')
def user(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's folder: configs, data/ade, data/coco, and the authors' ImageNet file, whose values are made up."""
    folder = make_user_folder(tmp_path_factory.mktemp('user'), workplace)
    classifier = {'head.weight': torch.zeros(1000, 384), 'head.bias': torch.zeros(1000)}
    weights = {**parity.released_state_dict('transnext_micro'), **classifier}
    torch.save(dict(model=weights), folder / 'transnext_micro_224_1k.pth')
    yield folder
    shutil.rmtree(folder)  # checkpoints of 2 GB


def train(user: Path, config: str, *options: str, how: Callable, work_dir: str | None = None) -> tuple[Path, str]:
    """Run tools/train.py, in processes of its own or in this one; return the work dir and the log."""
    how(
        user, 'train.py', config, *(('--work-dir', work_dir) if work_dir else ()), '--cfg-options', WEIGHTS,
        *small_training(config), *SMALL_MODEL[config], *small_images('val', 3), *options,
        'default_hooks.checkpoint.save_best=None', 'default_hooks.checkpoint.save_optimizer=False',
        'default_hooks.logger.interval=1',
    )  # fmt: skip
    folder = user / (work_dir or f'work_dirs/transnext/{Path(config).stem}')
    return folder, max(folder.glob('*/*.log')).read_text()


def check(user: Path, config: str, checkpoint: Path, *arguments: str, tool: InProcess, options: list[str]) -> dict:
    """Run tools/test.py; return its metrics."""
    work_dir = checkpoint.parent / f'test{len(list(checkpoint.parent.glob("test*")))}'
    tool(
        user, 'test.py', config, str(checkpoint), '--work-dir', str(work_dir), *arguments, '--cfg-options',
        *SMALL_MODEL[config], *NO_WORKERS, *options,
    )  # fmt: skip
    return metrics_of_test(work_dir)


def test_train_by_iterations(user: Path, tool: InProcess) -> None:
    work_dir, log = train(user, UPERNET, *TWO_ITERATIONS, how=run_forked)
    assert re.search(r'seed: \d+\n', log)  # which the run has drawn
    assert 'transnext_micro_224_1k.pth; 615 entries used, not used: head.weight, head.bias\n' in log
    # The optimizer's groups as one table, and nothing of what mmengine says of each parameter.
    assert log.count('learning rate and weight decay') == 1
    assert re.search(r'6e-05 .* 0.05 .* 375 .* backbone.stages.0.patch_embed.proj.weight', log)
    assert 'paramwise_options' not in log and 'The value is the same before and after' not in log
    # The first iterations of the real warm-up: from 6e-11 by 4e-8 each.
    rates = [line['lr'] for line in scalars(work_dir) if 'lr' in line]
    assert rates == pytest.approx([6e-11 + 6e-5 * index / 1499 for index in range(2)], rel=1e-3)
    saved, checkpoint = work_dir / 'upernet_micro_ade20k.py', torch.load(work_dir / 'iter_2.pth', weights_only=False)
    assert checkpoint['meta']['cfg'] == saved.read_text()
    # As it is written: without what the training adds to it.
    steps, written = (Config.fromfile(path).train_dataloader.dataset.pipeline for path in (saved, ROOT / UPERNET))
    assert [step.type for step in steps] == [step.type for step in written]

    metrics = check(user, UPERNET, work_dir / 'iter_2.pth', options=small_images('test', 3), tool=tool)
    assert 'mIoU' in metrics and metrics == last_validation(work_dir)


@pytest.mark.slow
def test_two_processes_with_synchronised_batch_norm(user: Path) -> None:
    work_dir, _ = train(user, UPERNET, *TWO_ITERATIONS, how=partial(run_forked, world_size=2), work_dir='two')
    assert 'mIoU' in last_validation(work_dir)
    state_dict = torch.load(work_dir / 'iter_2.pth', weights_only=False)['state_dict']
    assert state_dict['decode_head.fpn_bottleneck.bn.num_batches_tracked'] == 2


@pytest.mark.parametrize(('config', 'checkpoint', 'metric'), [
    (DINO, 'epoch_2.pth', 'coco/bbox_mAP'),
    pytest.param(MASK2FORMER, 'iter_2.pth', 'mIoU', marks=pytest.mark.slow),
    pytest.param(PANOPTIC, 'iter_2.pth', 'coco_panoptic/PQ', marks=pytest.mark.slow),
])  # fmt: skip
def test_detr_like_heads(user: Path, config: str, checkpoint: str, metric: str, tool: InProcess) -> None:
    by_epoch = checkpoint.startswith('epoch')
    work_dir, log = train(user, config, *(TWO_EPOCHS if by_epoch else TWO_ITERATIONS), *NO_WORKERS, how=tool)
    # The backbone learns at a tenth of the rate.
    assert re.search(r'1e-05 .* backbone\.', log) and re.search(r'0.0001 ', log)
    if by_epoch:  # a tenth after the milestone
        lines = [line for line in scalars(work_dir) if 'loss' in line]
        assert [line['epoch'] for line in lines] == [1, 1, 2, 2]
        assert [line['lr'] / lines[0]['lr'] for line in lines] == pytest.approx([1, 1, 0.1, 0.1])
    metrics = check(user, config, work_dir / checkpoint, options=small_images('test', 3), tool=tool)
    assert metric in metrics and metrics == last_validation(work_dir)
    if config == PANOPTIC:  # mmdet merges no masks of several scales
        return
    number = 3 if by_epoch else 6
    scales = [f'tta_pipeline.1.transforms.0.{index}.scale=({96 + 16 * index},96)' for index in range(number)]
    options = ('test_dataloader.dataset.indices=2', *scales)
    assert metric in check(user, config, work_dir / checkpoint, '--tta', options=options, tool=tool)


def test_dry_run_says_what_the_run_will_be_and_writes_nothing(user: Path, tool: InProcess) -> None:
    before = sorted(user.rglob('*'))
    printed = tool(
        user, 'train.py', UPERNET, '--dry-run', '--work-dir', 'dry', '--cfg-options', WEIGHTS,
        *small_training(UPERNET), *small_images('val', 3),
    )  # fmt: skip
    assert sorted(user.rglob('*')) == before
    told = dict(re.findall(r'^(\w[\w ]*?) {2,}(\S.*)$', printed, flags=re.MULTILINE))
    assert told['model'] == 'EncoderDecoder with TransNeXt, 41.7 M parameters, 41.7 M of them trained'
    assert told['weights'] == 'transnext_micro_224_1k.pth; 615 entries used, not used: head.weight, head.bias'
    assert told['images per step'] == f'2 of {NUM_TRAIN}: 2 a process x 1 processes x 1 accumulated iterations'
    assert told['iterations'] == f'160,000: {320_000 / NUM_TRAIN:.1f} epochs'
    assert told['validation'] == '3 images after every 16,000 iterations'
    assert re.fullmatch(r'\d+ \(drawn: every run draws another\)', told['seed'])
    assert re.fullmatch(r'[\d.]+ s, loss [\d.]+', told['first step'])
    assert 'GiB' in told['peak memory']
    assert re.match(r'\d+.* at the speed of the first step', told['estimated duration'])
    assert re.search(r'6e-05 .* 0 .* 283 .* 146,636 ', printed)


CHECKPOINT = 'panoptic/iter_180.pth'
IMAGES = 'data/mini/coco/val2017'


@pytest.fixture
def panoptic(workplace: Path, tool: InProcess) -> Path:
    """The work dir of a miniature run, shorter than `--mini` alone; the first test that needs it trains."""
    work_dir = workplace / 'panoptic'
    if not work_dir.exists():
        tool(
            workplace, 'train.py', SMALL_PANOPTIC, '--mini', '--work-dir', 'panoptic', '--cfg-options',
            'optim_wrapper.optimizer.lr=2e-3', 'train_cfg.max_iters=180', 'train_cfg.val_interval=180',
            'param_scheduler.1.end=180', 'default_hooks.checkpoint.interval=180',
            'train_dataloader.dataset.pipeline.4.crop_size=(128,128)',
            'model.data_preprocessor.batch_augments.0.size=(128,128)',
        )  # fmt: skip
    return work_dir


@pytest.mark.slow
def test_a_panoptic_model_learns_and_comes_back(workplace: Path, panoptic: Path, tool: InProcess) -> None:
    validated = last_validation(panoptic)
    assert validated['coco_panoptic/PQ_st'] > 6
    # From shards, where no data are.
    tool(workplace, 'make_shards.py', SMALL_PANOPTIC, '--mini', '--splits', 'val', '--out', 'panoptic/shards')
    (empty := workplace / 'panoptic/no_data').mkdir()
    options = ('--shards', '../shards', '--show-dir', '../drawn', '--work-dir', '../test')
    tool(empty, 'test.py', SMALL_PANOPTIC, workplace / CHECKPOINT, '--mini', *options)
    assert not list(empty.iterdir())
    tested = metrics_of_test(panoptic / 'test')
    assert {'coco_panoptic/PQ', 'coco/segm_mAP'} <= set(tested)
    assert tested == validated
    # Left the ground truth, whose segments cover the image; right another picture.
    drawn = list((panoptic / 'drawn').rglob('vis_image/*.png'))
    assert len(drawn) == NUM_VAL
    for path in drawn:
        image = mmcv.imread(str(workplace / IMAGES / f'{int(path.stem.split("_")[-1]):012d}.jpg'))  # counted from 1
        truth, predicted = np.split(mmcv.imread(str(path)), 2, axis=1)
        assert (np.abs(truth.astype(int) - image).max(axis=-1) > 3).mean() > 0.5 and (truth != predicted).any()


@pytest.mark.slow
def test_prediction_is_coco_s_panoptic_format(workplace: Path, panoptic: Path, tool: InProcess) -> None:
    predictor = Predictor(SMALL_PANOPTIC, workplace / CHECKPOINT, mini=True, device='cpu')
    images = sorted((workplace / IMAGES).glob('*.jpg'))
    maps = [sample.pred_panoptic_seg.sem_seg[0].numpy() for sample in predictor(images)]
    # So few iterations leave some images without a segment, on each kind of processor others.
    image, segments = max(zip(images, maps, strict=True), key=lambda pair: (pair[1] % 1000 < 133).sum())
    found = [segment for segment in np.unique(segments).tolist() if segment % 1000 < 133]
    kept = found[-1] % 1000
    for out, classes in (('all', []), ('one', ['--classes', predictor.classes[kept]])):
        options = ('--mini', '--device', 'cpu', '--out', f'panoptic/{out}', *classes)
        tool(workplace, 'predict.py', SMALL_PANOPTIC, CHECKPOINT, image.relative_to(workplace), *options)
        document = json.loads((panoptic / out / 'predictions.json').read_text())
        (annotation,) = document['annotations']
        ids = rgb2id(np.asarray(Image.open(panoptic / out / annotation['file_name'])))
        things = [category['id'] for category in document['categories'] if category['isthing']]
        assert things == list(range(1, 81)) and len(document['categories']) == 133
        # Every segment has the pixels that the model found, and no other pixel has an ID.
        expected = [segment for segment in found if not classes or segment % 1000 == kept]
        for each, segment in zip(annotation['segments_info'], expected, strict=True):
            assert each['category_id'] == segment % 1000 + 1
            assert ((ids == each['id']) == (segments == segment)).all()
            assert each['area'] == (segments == segment).sum()
        assert set(np.unique(ids)) - {0} == {each['id'] for each in annotation['segments_info']}
        assert (mmcv.imread(str(panoptic / out / f'overlays/{image.stem}.png')).shape[:2]) == ids.shape


@pytest.mark.slow
@needs('panopticapi')
def test_panopticapi_gives_the_same_quality(workplace: Path, panoptic: Path, tool: InProcess) -> None:
    """Predictions in the official format of results, evaluated without this package and OpenMMLab."""
    results = panoptic / 'official' / 'results'
    options = ('--work-dir', 'panoptic/official', '--cfg-options', f'test_evaluator.0.outfile_prefix={results}')
    tool(workplace, 'test.py', SMALL_PANOPTIC, CHECKPOINT, '--mini', *options)
    annotations = workplace / 'data/mini/coco/annotations'
    segments = ('--segments', annotations / 'panoptic_val2017', f'{results}.panoptic')
    script, truth = ROOT / 'benchmarks/official_evaluation.py', annotations / 'panoptic_val2017.json'
    command = (script, truth, f'{results}.panoptic.json', *segments)
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    found = json.loads(process.stdout)
    assert found == {'PQ': pytest.approx(metrics_of_test(panoptic / 'official')['coco_panoptic/PQ'])}
    assert found['PQ'] > 1
