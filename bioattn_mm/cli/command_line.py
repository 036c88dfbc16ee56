"""The command line of the tools: one-line errors, and the arguments that several tools take."""

import argparse
import functools
import locale
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
from ..run_config.config_text import configs_formatted_once
from ..run_config.installed import how_to_install
from ..run_config.runner import LATE
from ..runtime.arguments import AtLeast
from .restarts import note_refusal

# What `--log` takes (see `trackers`).
TRACKERS = ('tensorboard', 'wandb', 'mlflow')
# What may stand for a checkpoint, for the help of the tools.
CHECKPOINT_KINDS = 'a file, a URL, or hf://OWNER/NAME/FILE of a Hugging Face repository'


def run_tool(main: Callable[[], None]) -> Callable[[], None]:
    """Decorate a tool's `main`: an `InputError` or `OSError` is printed as one line, and the exit code is 2.

    The same if a package is missing that an extra of bioattn_mm installs, and for any other exception where
    `--cfg-options` were given, which may be to blame, except for what ends a run that has begun; with
    `log_level=DEBUG` among them the traceback is printed. Ctrl+C ends a tool without a traceback.

    While `main` runs, every checkpoint is read without running code in it (see `unpickling`) and may lie on the
    Hugging Face Hub (see `fetch`), also where mmengine's Runner reads it.
    """

    @functools.wraps(main)
    def run() -> None:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, 'reconfigure'):  # names of files and classes may have characters that it lacks
                stream.reconfigure(errors='backslashreplace')
        ConfigOptions.given = []
        try:
            with code_refused(), mmengine_reads_all(), configs_formatted_once():
                main()
        except pickle.UnpicklingError as error:  # of a checkpoint that mmengine, mmdet or mmseg reads
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
            _fail(
                f'a file or its name cannot be had in this locale, whose encoding is '
                f'{locale.getpreferredencoding(False)}: {error}; set PYTHONUTF8=1, and rename files whose names are '
                'not in UTF-8'
            )
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
    """End the process with one line and exit code 2."""
    print(f'error: {printable((message.splitlines() or [""])[0])}', file=sys.stderr)
    note_refusal()
    sys.exit(2)


class ToolParser(argparse.ArgumentParser):
    """A parser with methods for the arguments that several tools take.

    Its help keeps the line breaks of the description, and ends with example calls.

    Args:
        description: The tool's docstring.
        *examples: Calls without `python tools/`.
    """

    # The command that the user called, such as 'bioattn train', for the help; None for a script.
    command: str | None = None

    def __init__(self, description: str, *examples: str) -> None:
        if self.command:
            examples = [f'{self.command} {call.partition(" ")[2]}' for call in examples]
        else:
            examples = [f'python tools/{call}' for call in examples]
        lines = ['Examples:' if len(examples) > 1 else 'Example:', *(f'  {call}' for call in examples)]
        super().__init__(
            prog=self.command,
            description=description,
            epilog='\n'.join(lines),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_config(self, **kwargs) -> None:
        """Add the config file."""
        self.add_argument(
            'config',
            **kwargs,
            help='config file, or the name of one that comes with the package, such as transnext/upernet_tiny_ade20k',
        )

    def add_data(self) -> None:
        """Add the arguments of own data, which `own_data.data_arguments` reads."""
        from ..run_config.own_data import LAYOUTS

        group = self.add_argument_group('own data', LAYOUTS)
        group.add_argument(
            '--data',
            metavar='DIR',
            help="own data in place of the config's; without validation images, a random tenth of the training "
            'images is taken for them, and nothing is written into the folder',
        )
        group.add_argument('--train-data', metavar='DIR', help='own training images, in place of those of --data')
        group.add_argument('--val-data', metavar='DIR', help='own validation images, in place of those of --data')
        group.add_argument(
            '--reduce-zero-label',
            action='store_true',
            help='0 in the label maps does not count, and the value of the first class is 1',
        )
        group.add_argument(
            '--as-rgb',
            action='store_true',
            help='read all images as RGB in 8 bits: grey ones as three equal channels, without an alpha channel '
            '(default: PNG, TIFF and .npy files that are not RGB in 8 bits with all their channels and their depth)',
        )

    def add_checkpoint(self) -> None:
        """Add the checkpoint of a whole model."""
        self.add_argument('checkpoint', help=f'checkpoint of the whole model: {CHECKPOINT_KINDS}')

    def add_config_options(self) -> None:
        """Add what changes a config or lets its checkpoints be read."""
        self.add_argument(
            '--mini',
            action='store_true',
            help='use the generated miniature datasets, or the own data, with images and crops of a quarter of the '
            'size; training takes 200 iterations of 2 images (16 to classify) with a fixed seed, from random weights '
            'or those of --cfg-options model.backbone.init_cfg.checkpoint=FILE: minutes on a 2-core CPU',
        )
        self.add_argument(
            '--cfg-options',
            nargs='+',
            action=ConfigOptions,
            metavar='KEY=VALUE',
            help='override config values, such as model.backbone.bias_mode=interpolate; applied after --mini',
        )
        self.add_trust_checkpoint()

    def add_shards(self) -> None:
        """Add `--shards`."""
        self.add_argument(
            '--shards',
            metavar='DIR',
            help='read images, label maps and annotation files from the tar files of tools/make_shards.py instead of '
            "the config's data root: for network file systems",
        )

    def add_trust_checkpoint(self) -> None:
        """Add `--trust-checkpoint`."""
        self.add_argument(
            '--trust-checkpoint',
            action=TrustCheckpoint,
            nargs=0,
            help='also read checkpoints that hold classes other than those that mmengine writes; reading such a file '
            'can run any program, so use this only for files from a source that you trust',
        )

    def add_bias_mode(self) -> None:
        """Add `--bias-mode`."""
        self.add_argument(
            '--bias-mode',
            metavar='MODE',
            help='position bias of TransNeXt at sizes that it was not trained on: extrapolate, interpolate, or '
            "linear, which keeps the pooled grid of the training size (default: the config's)",
        )

    def add_metric(self) -> None:
        """Add `--metric`."""
        self.add_argument('--metric', help="metric of the config's evaluator (default: mIoU, AP of boxes or top-1)")

    def add_amp(self) -> None:
        """Add `--amp`."""
        self.add_argument(
            '--amp',
            nargs='?',
            const='float16',
            choices=['float16', 'bfloat16'],
            help='mixed precision in this dtype, float16 without a value, which needs a GPU; bfloat16 also on a CPU '
            'with instructions for it (default: float32)',
        )

    def add_cuda_graphs(self) -> None:
        """Add `--cuda-graphs`."""
        self.add_integer(
            '--cuda-graphs',
            minimum=1,
            nargs='?',
            const=16,
            metavar='N',
            help='run backbone and neck as CUDA graphs, which launch all their kernels at once: one for each size of '
            'images that comes twice, N sizes at most (%(const)s without a value), others without a graph; the '
            'results are the same; needs a GPU',
        )

    def add_log(self) -> None:
        """Add `--log`."""
        self.add_argument(
            '--log',
            nargs='+',
            action='extend',
            default=[],
            choices=TRACKERS,
            metavar='TRACKER',
            help=f'write curves, metrics and the config to trackers, too: {", ".join(TRACKERS)}; the project is the '
            "config's folder, the run has its name; W&B and MLflow go by their own variables of the environment, "
            'such as WANDB_MODE=offline and MLFLOW_TRACKING_URI',
        )

    def add_launcher(self) -> None:
        """Add `--launcher`."""
        self.add_argument(
            '--launcher',
            choices=['none', 'pytorch', 'slurm', 'mpi'],
            default='none',
            help='what started the processes of a distributed run (default: none, a single process)',
        )
        # torch.distributed.launch appends it; it also sets the environment variable LOCAL_RANK, which is used.
        self.add_argument('--local_rank', '--local-rank', type=int, help=argparse.SUPPRESS)

    def add_out(self, content: str, unless: str | None = None) -> None:
        """Add `--out`, a folder that must not hold the tool's files yet; required without the flag `unless`."""
        needed = f'; needed unless {unless} is given' if unless else ''
        help = f'folder for {content}; nothing is overwritten{needed}'
        self.add_argument('--out', required=unless is None, metavar='DIR', help=help)

    def add_device(self) -> None:
        """Add `--device`."""
        self.add_argument(
            '--device',
            action=Device,
            default='cuda' if torch.cuda.is_available() else 'cpu',
            help='device to compute on, such as cpu or cuda:0 (default: the GPU if there is one, else the CPU)',
        )

    def add_size(
        self,
        default: tuple[int, int] | None,
        help: str,
        otherwise: str = 'as the test pipeline resizes them, of classifiers the whole image to the size of its crop',
    ) -> None:
        """Add `--size`, the height and width of images in pixels; `otherwise` says what None means."""
        from ..models.backbones.base import MIN_INPUT_SIZE  # here, because importing all backbones takes seconds

        help += ' (default: {} {})'.format(*default) if default else f' (default: {otherwise})'
        self.add_integer(
            '--size', minimum=MIN_INPUT_SIZE, nargs=2, default=default, metavar=('HEIGHT', 'WIDTH'), help=help
        )

    def add_integer(self, name: str, *, minimum: int, **kwargs) -> None:
        """Add an option for one or several integers that must not be below a minimum."""
        self.add_argument(name, action=AtLeast, minimum=minimum, **kwargs)

    def add_changes(self) -> None:
        """Add the options of changed images, which `analysis.conditions.Changes` has."""
        group = self.add_argument_group('changed images, side by side with the images as they are')
        group.add_argument(
            '--corrupt',
            nargs='+',
            default=[],
            metavar='NAME:SEVERITY',
            help='corruptions of ImageNet-C and their severities, 1 to 5, such as gaussian_noise:3 fog:5',
        )
        group.add_argument(
            '--attack',
            choices=('fgsm', 'pgd'),
            help='attack the classifier or segmentor: fgsm (one step) or pgd (five, random start) raise the loss of '
            'its own prediction',
        )
        group.add_argument(
            '--epsilon',
            metavar='E',
            help='largest change of a pixel value by the attack as part of its range (default: 1/255)',
        )

    def add_backbone_arguments(self, files: str, max_images: int, size: tuple[int, int] | None = None) -> None:
        """Add the arguments of the tools that run a backbone on images, which `analysis.models.read_sources` reads.

        Args:
            files: What goes into the folder `--out`.
            max_images: Default of `--max-images`.
            size: Default of `--size`.
        """
        self.add_config(nargs='?')
        self.add_argument(
            'checkpoint',
            nargs='?',
            help=f'checkpoint of the whole model, of its backbone, or of ImageNet: {CHECKPOINT_KINDS} (default: the '
            "file in the config's init_cfg if it is a local one, else random weights)",
        )
        self.add_argument(
            '--timm',
            nargs='+',
            action='append',
            default=[],
            metavar=('NAME', 'CHECKPOINT'),
            help='a model of timm in place of a config, such as swin_tiny_patch4_window7_224, with or without a '
            "checkpoint; 'pretrained' stands for timm's own weights",
        )
        self.add_argument(
            '--compare',
            nargs='+',
            action='append',
            default=[],
            metavar=('CONFIG', 'CHECKPOINT'),
            help='another model on the same images, with or without a checkpoint; repeat the option for more models',
        )
        self.add_out(files)
        self.add_argument(
            '--images', metavar='PATH', help="image or folder of images (default: the config's validation images)"
        )
        help = f'take the first N images in the order of their names (default: {max_images})'
        self.add_integer('--max-images', minimum=1, default=max_images, metavar='N', help=help)
        self.add_size(size, 'resize images to this size in pixels, which need not be square')
        self.add_config_options()
        self.add_device()


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
    """mmengine's `KEY=VALUE ...`, with a one-line error for anything else.

    Attributes:
        given: What the command line has of them.
    """

    given: list[str] = []

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
    """Lets checkpoints run code from the moment the option is parsed."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        trust_checkpoints()
