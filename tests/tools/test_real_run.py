"""The documented commands without `--mini`: the configs' own weights, rates, schedules, loops, samplers and norms."""

import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from .. import parity
from ..conftest import NUM_TRAIN
from .running import ROOT, InProcess, last_validation, metrics_of_test, run_forked, scalars
from .small_images import NO_WORKERS, small_images, small_training
from .user_folder import make_user_folder

UPERNET, DINO, MASK2FORMER, INSTANCE, PANOPTIC = (
    f'configs/transnext/{name}.py'
    for name in 'upernet_micro_ade20k dino_4scale_micro_coco mask2former_micro_ade20k mask2former_micro_coco '
    'mask2former_tiny_ade20k_panoptic'.split()
)
WEIGHTS = 'model.backbone.init_cfg.checkpoint=transnext_micro_224_1k.pth'
LOG = 'default_hooks.logger.interval=1'
TWO_EPOCHS = (
    'train_cfg.max_epochs=2', 'train_dataloader.dataset.indices=4', 'param_scheduler.0.milestones=[1]',
)  # fmt: skip
TWO_ITERATIONS = ('train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2')
# Of Mask2Former's head.
SMALL_QUERIES = ('num_queries=20', 'transformer_decoder.num_layers=3', 'pixel_decoder.encoder.num_layers=2')
# What training and testing must agree on: slow heads of the host libraries are made smaller, and get fewer regions.
# Small images have fewer places than DINO has queries.
SMALL_MODEL = {
    UPERNET: ('model.decode_head.channels=64', 'model.auxiliary_head.channels=32'),
    DINO: ('model.num_queries=50', 'model.encoder.num_layers=2', 'model.decoder.num_layers=2'),
    MASK2FORMER: tuple(f'model.decode_head.{option}' for option in SMALL_QUERIES),
    INSTANCE: tuple(f'model.panoptic_head.{option}' for option in SMALL_QUERIES),
}  # fmt: skip
SMALL_MODEL[PANOPTIC] = (
    *SMALL_MODEL[INSTANCE],
    'model.backbone.arch=micro',
    'model.panoptic_head.in_channels=[48,96,192,384]',
)


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
        user, 'train.py', config, *(('--work-dir', work_dir) if work_dir else ()), '--cfg-options', WEIGHTS, LOG,
        *small_training(config), *SMALL_MODEL[config], *small_images('val', 3), *options,
        'default_hooks.checkpoint.save_best=None', 'default_hooks.checkpoint.save_optimizer=False',
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
    pytest.param(INSTANCE, 'iter_2.pth', 'coco/segm_mAP', marks=pytest.mark.every_config),
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
    if config in (INSTANCE, PANOPTIC):  # mmdet merges no masks of several scales
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
