"""Trains a model of each framework for two steps and predicts with it, for `bounds.py`.

Where FOLDER has weights of such a training already, it only predicts, with the backbone in timm trained all the same.
Each command is that of a user, `bioattn ...`, in a process that is forked: to import the frameworks takes longer.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
from pathlib import Path

import bioattn_mm  # noqa: F401  before mmdet, which looks for mmcv's operators when it is imported

# isort: split
import mmdet.apis  # noqa: F401
import mmpretrain.apis  # noqa: F401
import mmseg.apis  # noqa: F401
import timm
import torch
import torch.nn.functional as F

from bioattn_mm.cli.main import main as bioattn

CONFIGS = dict(
    mmdet='transnext/mask_rcnn_micro_coco',
    mmseg='transnext/upernet_micro_ade20k',
    mmpretrain='transnext/transnext-micro_8xb128_in1k',
)
IMAGES = dict(mmdet='data/mini/coco/val2017', mmseg='data/mini/ADEChallengeData2016/images/validation')
NO_WORKERS = ('num_workers=0', 'persistent_workers=False')
TWO_STEPS = (
    'train_cfg.max_iters=2', 'train_cfg.val_interval=2',
    *(f'{split}_dataloader.{option}' for split in ('train', 'val') for option in NO_WORKERS),
)  # fmt: skip


def run(*words: str) -> None:
    """Run `bioattn` with these words in a process of its own; what it printed is shown where it fails."""
    log = Path(f'{words[0]}.log')

    def command() -> None:
        with log.open('w') as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        sys.argv = ['bioattn', *words]
        bioattn()

    process = multiprocessing.get_context('fork').Process(target=command)
    process.start()
    process.join()
    if process.exitcode:
        print(log.read_text()[-5000:])
        raise SystemExit(f'bioattn {" ".join(words)}: exit code {process.exitcode}')
    print(f'bioattn {" ".join(words[:2])}: passed', flush=True)


def train_timm() -> None:
    """Two steps of a classifier of timm's registry: the second loss is below the first."""
    torch.manual_seed(0)
    model = timm.create_model('transnext_micro', num_classes=3, drop_path_rate=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images, classes = torch.randn(3, 3, 64, 96), torch.arange(3)
    losses = []
    for _ in range(2):
        loss = F.cross_entropy(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if not losses[1] < losses[0] < float('inf'):
        raise SystemExit(f'timm: losses {losses}, of which the second should be lower')
    print(f'timm: losses {losses[0]:.4f}, {losses[1]:.4f}', flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, metavar='FOLDER', help='where data and weights are, or will be')
    parser.add_argument('--export', action='store_true', help='to ONNX, too, compared in onnxruntime')
    args = parser.parse_args()
    trains = not (args.folder / 'mmpretrain' / 'iter_2.pth').is_file()  # what is trained last
    if trains:
        shutil.rmtree(args.folder, ignore_errors=True)
        args.folder.mkdir()
    os.chdir(args.folder)
    if trains:
        run('make-mini-datasets', '--num-train', '4', '--num-val', '2')
        for framework, config in CONFIGS.items():
            run('train', config, '--mini', '--work-dir', framework, '--cfg-options', *TWO_STEPS)
    for framework, images in IMAGES.items():
        predicted = Path('predicted', framework)
        shutil.rmtree(predicted, ignore_errors=True)
        run('predict', CONFIGS[framework], f'{framework}/iter_2.pth', '--mini', '--out', str(predicted), images)
        if len(list((predicted / 'overlays').iterdir())) != 2:
            raise SystemExit(f'{predicted} has not the two images')
    done = f'trained {", ".join(CONFIGS)}, timm; predicted' if trains else 'trained timm; predicted'
    if args.export:
        options = ('--via', 'torch', '--to', 'onnx', '--out', 'exported', '--verify', '--verify-images', '2')
        run('export', CONFIGS['mmseg'], 'mmseg/iter_2.pth', '--mini', *options)
        done += '; exported'
    # The last: it starts threads in this process, for which one that is forked from it later would wait for ever.
    train_timm()
    print(done)


if __name__ == '__main__':
    main()
