#!/usr/bin/env python
"""Segmentors exported for any size, in onnxruntime, against PyTorch: the same image and threads, in one process.

Weights are random. `compiled` is torch.compile for one size; the minutes that it compiles are not counted.
"""

import argparse
import contextlib
import logging
import sys
import tempfile
from pathlib import Path

import torch
from measure import measure, print_header, print_row
from mmdeploy.utils import get_root_logger
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from onnxruntime import InferenceSession, SessionOptions
from torch import Tensor, nn

from bioattn_mm.mmdeploy_rewriters.export import export

ROOT = Path(__file__).parents[1]
DEPLOY_CONFIG = ROOT / 'configs/deploy/segmentation_onnxruntime_dynamic.py'
CONFIGS = (
    'transnext/upernet_tiny_ade20k',
    'convit/upernet_tiny_ade20k',
    'pervit/upernet_tiny_ade20k',
    'gab/upernet_vit_small_ade20k',
    'gab/upernet_swin_small_ade20k',
    'vars/upernet_rvt_tiny_vars_sd_ade20k',
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--configs', nargs='+', default=CONFIGS, help='of mmseg, below configs/ and without .py')
    parser.add_argument(
        '--sizes', nargs='+', default=['512x512', '384x640'], metavar='HxW', help='pixels (default: %(default)s)'
    )
    parser.add_argument('--repeats', type=int, default=5, help='runs of each; the fastest counts (default: 5)')
    args = parser.parse_args()

    get_root_logger().setLevel(logging.ERROR)
    print(f'UperNet, batch 1, float32, {torch.get_num_threads()} threads\n')
    systems = ('onnxruntime', 'PyTorch', 'compiled')
    print_header('config', 'size', *systems, 'faster than PyTorch', 'than compiled', 'difference')
    for name in args.configs:
        with tempfile.TemporaryDirectory() as folder:
            model, session = pytorch_and_onnxruntime(name, Path(folder))
            for size in args.sizes:
                row(name, size, model, session, args.repeats)


def pytorch_and_onnxruntime(name: str, folder: Path) -> tuple[nn.Module, InferenceSession]:
    """A segmentor with random weights, and its export for any size."""
    config = Config.fromfile(ROOT / f'configs/{name}.py')
    config.model.test_cfg = dict(mode='whole')
    init_default_scope(config.default_scope)
    model = MODELS.build(config.model).eval()
    checkpoint = folder / 'random.pth'
    torch.save(dict(state_dict=model.state_dict()), checkpoint)
    with contextlib.redirect_stdout(sys.stderr):
        (file,) = export(config, Config.fromfile(DEPLOY_CONFIG), checkpoint, folder)
    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return model, InferenceSession(file, options)


@torch.no_grad()
def row(name: str, size: str, model: nn.Module, session: InferenceSession, repeats: int) -> None:
    height, width = (int(length) for length in size.split('x'))
    image = torch.randn(1, 3, height, width)
    meta = [dict(img_shape=(height, width))]
    torch._dynamo.reset()  # at a second size, torch.compile would compile for all sizes
    compiled = torch.compile(model.encode_decode)

    def in_onnxruntime() -> Tensor:
        return torch.from_numpy(session.run(None, {'input': image.numpy()})[0])

    def in_pytorch() -> Tensor:
        return model.encode_decode(image, meta)

    def in_compiled() -> Tensor:
        return compiled(image, meta)

    difference = float((in_onnxruntime() - in_pytorch()).abs().max())  # and the warm-up of both
    in_compiled()
    onnxruntime, pytorch, fast = (
        measure(function, repeats=repeats) for function in (in_onnxruntime, in_pytorch, in_compiled)
    )
    ratios = (f'{other.seconds / onnxruntime.seconds:.2f}x' for other in (pytorch, fast))
    print_row(name, f'{height} x {width}', onnxruntime, pytorch, fast, *ratios, f'{difference:.1e}')


if __name__ == '__main__':
    main()
