#!/usr/bin/env python
"""TransNeXt-T of the authors' release beside ours, with the same weights: features, gradients, time and memory.

FOLDER is a checkout of the authors' repository, github.com/DaiShiResearch/TransNeXt. On a GPU its `swattention` has
to be compiled: `pip install --no-build-isolation FOLDER/swattention_extension`. On a CPU their PyTorch code runs.

Both are backbones of a detector, without stochastic depth. A difference is the largest one of a tensor over its
largest value; the worst of all features is printed, and of the gradients that a random projection of the features
gives all parameters.
"""

import re
import sys
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from unittest.mock import MagicMock, patch

import timm.layers
import torch
from measure import (
    autocast,
    make_parser,
    measure_with,
    print_header,
    print_row,
    print_title,
    sides_of,
)
from torch import Tensor, nn

from bioattn_mm.checkpoints.loading import fit_backbone
from bioattn_mm.systems.transnext import TransNeXt

DTYPES = {'float32': torch.float32, 'float16': torch.float16, 'bfloat16': torch.bfloat16}
BIAS_MODES = {'extrapolate': True, 'interpolate': False}
# The authors' files import these from versions of mmdet and mmcv that are years old, to register and to log.
NOT_NEEDED = ('mmcv', 'mmcv.runner', 'mmdet', 'mmdet.models', 'mmdet.models.builder', 'mmdet.utils')

# This parameter adds the same to all logits of a softmax in stage 4, so that its gradient is rounding alone.
NO_GRADIENT = re.compile(r'block4\.\d+\.attn\.cpb_fc2\.bias')


def main() -> None:
    parser = make_parser(__doc__, repeats=5, cpu_time=True)
    parser.add_argument('folder', type=Path, help="checkout of the authors' repository")
    parser.add_argument('--sizes', nargs='+', default=['512x512'], help='height x width, in pixels')
    parser.add_argument('--batch', type=int, default=1, help='images (default: %(default)s)')
    parser.add_argument('--dtypes', nargs='+', default=['float32'], choices=DTYPES, help='of autocast; float32: none')
    parser.add_argument('--bias-modes', nargs='+', default=list(BIAS_MODES), choices=BIAS_MODES)
    args = parser.parse_args()
    file = args.folder / 'detection/maskrcnn' / f'transnext_{"cuda" if args.device == "cuda" else "native"}.py'
    if not file.is_file():
        parser.error(f"there is no {file}: expected a checkout of the authors' repository")
    module = import_authors(file)
    print_title(f"{file.name} of the authors' release, batch {args.batch}", args)
    columns = ('input', 'bias', 'dtype', 'pass', 'authors', 'ours', 'faster')
    print_header(*columns, 'features differ by', 'gradients differ by')
    for size in args.sizes:
        image = torch.randn(args.batch, 3, *sides_of(size), device=args.device)
        for mode in args.bias_modes:
            models = make_models(module, mode, args.device)
            for dtype in args.dtypes:
                compare(models, image, DTYPES[dtype], (size, mode, dtype), args)


def import_authors(file: Path) -> object:
    """The module of the authors, with stand-ins for what it imports and this script does not need."""
    spec = spec_from_file_location(file.stem, file)
    module = module_from_spec(spec)
    stand_ins = {**{name: MagicMock() for name in NOT_NEEDED}, 'timm.models.layers': timm.layers}
    with patch.dict(sys.modules, stand_ins):
        spec.loader.exec_module(module)
    return module


def make_models(module: object, mode: str, device: str) -> dict[str, nn.Module]:
    """Both backbones with the same random weights; "interpolate" resizes the bias of 224 x 224 pixels."""
    arch = TransNeXt.arch_settings['tiny']
    authors = module.TransNeXt(
        patch_size=4,
        embed_dims=arch['embed_dims'],
        num_heads=arch['num_heads'],
        depths=arch['depths'],
        mlp_ratios=(8, 8, 4, 4),
        qkv_bias=True,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
        pretrain_size=224,
        is_extrapolation=BIAS_MODES[mode],
    )
    ours = TransNeXt('tiny', bias_mode=mode)
    for parameter in authors.parameters():  # no bias stays at zero
        nn.init.normal_(
            parameter, parameter.mean().item(), max(parameter.std().item(), 0.02) if parameter.ndim else 0
        )
    ours.load_state_dict(fit_backbone(ours, "the authors' model", authors.state_dict()).weights)
    return {'authors': authors.to(device), 'ours': ours.to(device)}


def compare(
    models: dict[str, nn.Module], image: Tensor, dtype: torch.dtype, cells: tuple[str, ...], args: object
) -> None:
    """Print the rows of a forward pass and of a training step."""
    with torch.no_grad(), autocast(args.device, dtype):
        features = {name: model.eval()(image) for name, model in models.items()}
    projections = [torch.randn_like(feature, dtype=torch.float32) for feature in features['authors']]
    of_features = max(map(difference, features['ours'], features['authors']))

    def train(model: nn.Module) -> None:
        model.zero_grad()
        with autocast(args.device, dtype):
            outputs = model(image)
        sum((output.float() * projection).sum() for output, projection in zip(outputs, projections)).backward()

    @torch.no_grad()
    def infer(model: nn.Module) -> None:
        with autocast(args.device, dtype):
            model(image)

    for name, run in (('forward', infer), ('training', train)):
        for model in models.values():
            run(model.train(run is train))
        theirs, ours = (measure_with(args, partial(run, model)) for model in models.values())
        faster = f'{theirs.seconds / ours.seconds:.2f}'
        row = (*cells, name, theirs, ours, faster)
        print_row(*row, f'{of_features:.1e}', f'{difference_of_gradients(models):.1e}' if run is train else '')


def difference(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def difference_of_gradients(models: dict[str, nn.Module]) -> float:
    own = {name: parameter.grad.squeeze() for name, parameter in models['ours'].named_parameters()}
    rename = models['ours'].release.rename
    return max(
        difference(own[rename(name)], parameter.grad.squeeze())
        for name, parameter in models['authors'].named_parameters()
        if not NO_GRADIENT.match(name)
    )


if __name__ == '__main__':
    main()
