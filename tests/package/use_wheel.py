"""Trains a model of each framework for two steps and predicts with it, for `bounds.py`.

Where FOLDER has weights of such a training already, it only predicts, with the backbone in timm trained all the same.
Each command is that of a user, `bioattn ...`.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import timm
import torch
import torch.nn.functional as F

import bioattn_mm  # noqa: F401  registers timm's names

CONFIGS = dict(
    mmdet='transnext/mask_rcnn_micro_coco',
    mmseg='transnext/upernet_micro_ade20k',
    mmpretrain='transnext/transnext-micro_8xb128_in1k',
)
IMAGES = dict(mmdet='data/mini/coco/val2017', mmseg='data/mini/ADEChallengeData2016/images/validation')
TWO_STEPS = ['train_cfg.max_iters=2', 'train_cfg.val_interval=2']
for split in ('train', 'val'):
    TWO_STEPS += [f'{split}_dataloader.num_workers=0', f'{split}_dataloader.persistent_workers=False']


def run(*words: str) -> None:
    """Run `bioattn` with these words; what it printed is shown where it fails."""
    command = [str(Path(sys.executable).with_name('bioattn')), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f'{done.stdout[-5000:]}\nbioattn {" ".join(words)}: exit code {done.returncode}')
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, metavar='FOLDER', help='where data and weights are, or will be')
    parser.add_argument('--export', action='store_true', help='to ONNX, too, compared in onnxruntime')
    args = parser.parse_args()
    train_timm()
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
    if args.export:
        options = ('--via', 'torch', '--to', 'onnx', '--out', 'exported', '--verify', '--verify-images', '2')
        run('export', CONFIGS['mmseg'], 'mmseg/iter_2.pth', '--mini', *options)
    trained = f'trained {", ".join(CONFIGS)}, timm' if trains else 'trained timm'
    print(f'{trained}; predicted{"; exported" if args.export else ""}')


if __name__ == '__main__':
    main()
