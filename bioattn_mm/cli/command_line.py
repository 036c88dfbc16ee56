"""The command line of the tools: one-line errors, and the arguments that several tools take."""

import argparse
import functools
import os
import pickle
import re
import signal
import sys
import traceback
from collections.abc import Callable

import torch
from mmengine.config import DictAction

from ..checkpoints import mmengine_reads_all
from ..checkpoints.unpickling import HOLDS_CODE, code_refused, refused_class, trust_checkpoints
from ..errors import InputError, printable
from ..runtime.arguments import AtLeast
from ..training.config.config_text import configs_formatted_once
from ..training.installed import how_to_install
from ..training.runner import LATE
from .help import GroupedParser
from .quiet import quiet_terminal
from .restarts import note_refusal

# `--log` takes these names (see `training.trackers`).
TRACKERS = ('tensorboard', 'wandb', 'mlflow')
# What may stand for a checkpoint, for the help of the tools.
CHECKPOINT_KINDS = 'a file, a URL, or hf://OWNER/NAME/FILE of Hugging Face'


def run_tool(main: Callable[[], None]) -> Callable[[], None]:
    """Decorate a tool's `main`: an `InputError` or `OSError` is printed as one line, and the exit code is 2.

    So is a missing package of an extra, and any other exception where `--cfg-options` were given, except for what
    ends a run that has begun. Every checkpoint is read without running code in it (see `unpickling`) and may lie on
    the Hugging Face Hub (see `fetch`), also where mmengine's Runner reads it.
    """

    @functools.wraps(main)
    def run() -> None:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, 'reconfigure'):  # its encoding may lack some characters
                stream.reconfigure(errors='backslashreplace')
        ConfigOptions.given = []
        try:
            with code_refused(), mmengine_reads_all(), configs_formatted_once(), quiet_terminal():
                main()
        except pickle.UnpicklingError as error:  # mmengine, mmdet or mmseg read a checkpoint
            refused = refused_class(error)
            _fail(f'a checkpoint {HOLDS_CODE.format(refused)}' if refused else f'cannot read a checkpoint: {error}')
        except KeyboardInterrupt:
            print('interrupted', file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        except ModuleNotFoundError as error:
            if how_to_install(error) is None:
                raise
            _fail(how_to_install(error))
        except UnicodeError as error:
            _fail(f'a file or its name is not in the encoding of this locale: {error}; set PYTHONUTF8=1')
        except (InputError, OSError) as error:
            # An error in a data loader's worker arrives with the worker's traceback in its message, whose last line
            # is "module.ErrorClass: message".
            message = (str(error).strip() or type(error).__name__).splitlines()[-1]
            _fail(re.sub(r'^([\w.]+\.)?\w*Error: ', '', message))
        except Exception as error:
            # One of several processes may have failed because of another one, and both may be started again.
            if not ConfigOptions.given or hasattr(error, LATE) or int(os.environ.get('WORLD_SIZE', 1)) > 1:
                raise
            if 'log_level=DEBUG' in ConfigOptions.given:
                traceback.print_exc()
            reason = (str(error).strip().splitlines() or ['no message'])[0]
            _fail(
                f'{type(error).__name__}: {reason}; --cfg-options may be to blame, {" ".join(ConfigOptions.given)}: '
                'leave them out to see whether it goes without, or add log_level=DEBUG for the traceback'
            )

    return run


def _fail(message: str) -> None:
    print(f'error: {printable((message.splitlines() or [""])[0])}', file=sys.stderr)
    note_refusal()
    sys.exit(2)


class Device(argparse.Action):
    """Stores a device on which PyTorch can compute."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        try:
            torch.zeros(1, device=values).item()  # the device "meta" has no values
        except (RuntimeError, AssertionError) as error:
            raise InputError(
                f'PyTorch has no device {values}: name another with {option_string}, such as cpu'
            ) from error
        setattr(namespace, self.dest, values)


class ConfigOptions(DictAction):
    """mmengine's `KEY=VALUE ...`, with a one-line error for anything else."""

    given: list[str] = []  # the options that the command line has

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        for value in values:
            key, equals, text = value.partition('=')
            if not key or not equals:
                raise argparse.ArgumentError(self, f'expected KEY=VALUE, got {value!r}')
            if '{' in text:
                raise argparse.ArgumentError(
                    self, f'a value cannot be a dict, got {value!r}: set its entries one by one, {key}.NAME=VALUE'
                )
            if any(text.count(left) != text.count(right) for left, right in ('()', '[]')):
                raise argparse.ArgumentError(self, f'brackets that do not match in {value!r}')
        super().__call__(parser, namespace, values, option_string)
        ConfigOptions.given = [*ConfigOptions.given, *values]


class TrustCheckpoint(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> None:
        trust_checkpoints()


# Arguments that several tools take, with what `argparse` wants of them.
SHARED = {
    'config': dict(
        metavar='CONFIG', help='config file, or the name of one of the package, such as transnext/upernet_tiny_ade20k'
    ),
    'checkpoint': dict(metavar='CHECKPOINT', help=f'checkpoint of the whole model: {CHECKPOINT_KINDS}'),
    '--data': dict(
        metavar='DIR', help="your data, in COCO's, YOLO's, Pascal VOC's or another format (docs/own_data.md)"
    ),
    '--train-data': dict(metavar='DIR', help='your training images, if they are not in --data'),
    '--val-data': dict(metavar='DIR', help='your validation images, if they are not in --data'),
    '--reduce-zero-label': dict(
        action='store_true', help='ignore 0 in the label maps, and number the classes from 1'
    ),
    '--as-rgb': dict(
        action='store_true', help='read all images as RGB in 8 bits (default: channels and depth of their files)'
    ),
    '--mini': dict(
        action='store_true', help='take drawn data, or yours from --data, at a quarter of the size: minutes on a CPU'
    ),
    '--cfg-options': dict(
        nargs='+', action=ConfigOptions, metavar='KEY=VALUE', help='override config values, even those of --mini'
    ),
    '--trust-checkpoint': dict(
        action=TrustCheckpoint, nargs=0, help='read checkpoints that can run code, too, if you trust their source'
    ),
    '--shards': dict(metavar='DIR', help='read the data from the tar files of make-shards, for network file systems'),
    '--bias-mode': dict(
        metavar='MODE', help='how TransNeXt fits its position bias to other sizes: extrapolate, interpolate or linear'
    ),
    '--metric': dict(help="metric of the config's evaluator (default: mIoU, box AP or top-1)"),
    '--amp': dict(
        nargs='?',
        const='float16',
        choices=['float16', 'bfloat16'],
        help='mixed precision: float16, if you name neither, needs a GPU; bfloat16 needs a GPU or a CPU with '
        'instructions for it (default: float32)',
    ),
    '--cuda-graphs': dict(
        action=AtLeast,
        minimum=1,
        nargs='?',
        const=16,
        metavar='N',
        help='run backbone and neck as CUDA graphs, for up to N image sizes (%(const)s if you give none): same '
        'results, on a GPU only',
    ),
    '--log': dict(
        nargs='+',
        action='extend',
        default=[],
        choices=TRACKERS,
        metavar='TRACKER',
        help=f'send curves, metrics and the config to trackers, too: {", ".join(TRACKERS)}',
    ),
    '--launcher': dict(
        choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='how processes are started (default: none)'
    ),
    '--local-rank': dict(type=int, help=argparse.SUPPRESS),  # torch.distributed.launch appends it
    '--device': dict(
        action=Device,
        default='cuda' if torch.cuda.is_available() else 'cpu',
        help='device to compute on, such as cpu or cuda:0 (default: the GPU if there is one, else the CPU)',
    ),
    '--corrupt': dict(
        nargs='+',
        default=[],
        metavar='NAME:SEVERITY',
        help='repeat it on corrupted images, such as gaussian_noise:3 fog:5',
    ),
    '--attack': dict(
        choices=('fgsm', 'pgd'), help='repeat it on images attacked by fgsm (one step) or pgd (five, random start)'
    ),
    '--epsilon': dict(
        metavar='E', help='how far the attack may change a pixel, as a fraction of its range (default: 1/255)'
    ),
    '--timm': dict(
        nargs='+',
        action='append',
        default=[],
        metavar=('NAME', 'CHECKPOINT'),
        help='a timm model instead of a config, such as swin_tiny_patch4_window7_224, with or without a checkpoint; '
        "'pretrained' takes timm's own weights",
    ),
    '--compare': dict(
        nargs='+',
        action='append',
        default=[],
        metavar=('CONFIG', 'CHECKPOINT'),
        help='another model to run on the same images, with or without a checkpoint; repeat the option for more',
    ),
    '--images': dict(metavar='PATH', help="image or folder of images (default: the config's validation images)"),
}


def model_options(args: argparse.Namespace) -> dict:
    """What the command line says of the model, as arguments of `Predictor`."""
    return {name: getattr(args, name) for name in ('device', 'mini', 'cfg_options', 'bias_mode', 'amp')}


class ToolParser(GroupedParser):
    """A parser for a tool's docstring and example calls, with methods for the arguments that several tools take."""

    # The command that the user called, such as 'bioattn train', for the help; None for a script.
    command: str | None = None

    def __init__(self, description: str, *examples: str) -> None:
        if self.command:
            examples = [f'{self.command} {call.partition(" ")[2]}' for call in examples]
        else:
            examples = [f'python tools/{call}' for call in examples]
        epilog = '\n  '.join(['Examples:' if len(examples) > 1 else 'Example:', *examples])
        super().__init__(prog=self.command, description=description, epilog=epilog)

    def add_shared(self, *names: str) -> None:
        for name in names:
            self.add_argument(name, **SHARED[name])

    def add_model(self) -> None:
        """Add a config and a checkpoint, which may be left out with `--mini`."""
        self.add_shared('config')
        help = f'{CHECKPOINT_KINDS} (default with --mini: the newest of the miniature run)'
        self.add_argument('checkpoint', nargs='?', metavar='CHECKPOINT', help=help)

    def add_config_options(self) -> None:
        self.add_shared('--mini', '--cfg-options', '--trust-checkpoint')

    def add_data(self) -> None:
        self.add_shared('--data', '--train-data', '--val-data', '--reduce-zero-label', '--as-rgb')

    def add_integer(self, name: str, *, minimum: int, **kwargs) -> None:
        self.add_argument(name, action=AtLeast, minimum=minimum, **kwargs)

    def add_out(self, content: str, required: bool = True) -> None:
        """Add `--out`, a folder that must not hold the tool's files yet."""
        help = f'folder for {content}; nothing is overwritten' + ('' if required else ' (default: none is written)')
        self.add_argument('--out', required=required, metavar='DIR', help=help)

    def add_size(
        self, default: tuple[int, int] | None, help: str, otherwise: str = 'as the test pipeline does'
    ) -> None:
        """Add `--size`, the height and width of images in pixels; `otherwise` says what None means."""
        from ..systems.common.backbone import MIN_INPUT_SIZE  # imported here, because all backbones take seconds

        help += ' (default: {} {})'.format(*default) if default else f' (default: {otherwise})'
        self.add_integer(
            '--size', minimum=MIN_INPUT_SIZE, nargs=2, default=default, metavar=('HEIGHT', 'WIDTH'), help=help
        )

    def add_backbone_arguments(self, files: str, max_images: int, size: tuple[int, int] | None = None) -> None:
        """Add the arguments of the tools that run a backbone on images; `files` go into the folder `--out`."""
        self.add_argument('config', nargs='?', **SHARED['config'])
        help = "weights of the model or its backbone (default: the config's local file, else random weights)"
        self.add_argument('checkpoint', nargs='?', metavar='CHECKPOINT', help=help)
        self.add_shared('--timm', '--compare', '--images')
        self.add_out(files)
        help = f'take the first N images, sorted by name (default: {max_images})'
        self.add_integer('--max-images', minimum=1, default=max_images, metavar='N', help=help)
        self.add_size(size, 'resize images to this size in pixels, square or not')
        self.add_config_options()
        self.add_shared('--device')
