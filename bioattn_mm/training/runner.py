"""Building the Runner of a config, what may stop its training, and the clock for what it runs."""

import copy
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook, LoggerHook
from mmengine.model import BaseModule
from mmengine.registry import RUNNERS
from mmengine.runner import FlexibleRunner, Runner

from ..errors import InputError, text_of
from .bad_data import NameBadFilesHook

# Optimizers of PyTorch that have a fused kernel, and the arguments by which a config chooses how they compute.
FUSED_OPTIMIZERS = ('Adam', 'AdamW', torch.optim.Adam, torch.optim.AdamW)
OTHER_WAYS = {'fused', 'foreach', 'capturable', 'differentiable'}


def build_runner(config: Config) -> Runner | FlexibleRunner:
    """Build the Runner of a config, of the class that its `runner_type` names, if any."""
    runner_type = RUNNERS.get(config.runner_type) if 'runner_type' in config else Runner
    runner = runner_type.from_cfg(config)
    runner.logger.info(f'environment and config are in {runner.logger.log_file}')
    runner.register_hook(NameBadFilesHook())
    if not is_main_process():
        # Every process of mmengine writes the metrics of a test, all to one file at once, which tears it.
        for hook in runner.hooks:
            if isinstance(hook, LoggerHook):
                hook.after_test_epoch = lambda *args, **kwargs: None
    # Strategies for several processes choose their optimizers themselves.
    if isinstance(runner, Runner):
        use_fused_optimizer(runner)
    return runner


def use_fused_optimizer(runner: Runner) -> None:
    """Let AdamW and Adam update the weights of a model on a GPU in one launch for a group, if the config is silent.

    PyTorch's own choice, `foreach`, launches a kernel for each operation. The runner's config stays as it is.
    """
    wrapper = runner.optim_wrapper
    optimizer = wrapper.get('optimizer') if isinstance(wrapper, dict) else None
    if optimizer is None or optimizer.get('type') not in FUSED_OPTIMIZERS or OTHER_WAYS & optimizer.keys():
        return
    if all(parameter.is_cuda for parameter in runner.model.parameters()):
        runner.optim_wrapper = copy.deepcopy(wrapper)
        runner.optim_wrapper['optimizer']['fused'] = True


@contextmanager
def without_initial_values() -> Iterator[None]:
    """Context in which `init_weights` of a model does not log how every parameter was initialised."""
    # It has no switch, and writes past the logger into its files: the method is replaced in the class.
    original = BaseModule._dump_init_info
    BaseModule._dump_init_info = lambda module: None
    try:
        yield
    finally:
        BaseModule._dump_init_info = original


# Attribute of an exception that has ended a run which had begun: its config is not to blame.
LATE = 'ended_a_run'


class BegunHook(Hook):
    """Knows whether what is running runs for the first time (`is_first`): then its failure is of the config."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.is_first, self.has_validated = True, False

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self.is_first = False

    def before_val_epoch(self, runner: Runner) -> None:
        self.is_first = not self.has_validated

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self.is_first, self.has_validated = False, True

    after_test_iter = after_train_iter


@contextmanager
def failures_in_one_line(config: Config) -> Iterator[BegunHook]:
    """Context of a run: what the config or the machine is to blame for raises an `InputError` that says so.

    Until the first step is over, and in the first validation, that is every exception, of several processes without
    those that another process may have caused; with `log_level='DEBUG'` its traceback is printed. Later it is those
    of which a user can know what to do (see `known_failure`). The Runner is to have the hook that this yields.
    """
    hook = BegunHook()
    try:
        yield hook
    except (InputError, OSError) as error:
        # The optimizer, for example, does not know the file that its state is from.
        functions = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
        if 'load_or_resume' in functions and str(config.load_from) not in str(error):
            raise InputError(f'{config.load_from} cannot be used: {error}') from error
        raise
    except Exception as error:
        known = known_failure(error, config)
        # One of several processes may have failed because of another one, which is started again.
        may_pass = get_world_size() > 1 and isinstance(error, RuntimeError)
        if known is None and (may_pass or not hook.is_first) or may_pass and is_out_of_memory(error):
            setattr(error, LATE, True)
            raise
        if config.get('log_level') == 'DEBUG':
            traceback.print_exc()
        if known is None:
            text = text_of(error)
            lines = [line for line in text.splitlines() if line.strip()] or ['no message']
            # An error in a data loader's worker arrives with the worker's traceback in its message.
            reason = lines[-1] if 'Original Traceback' in text else lines[0]
            kind = type(error).__name__
            known = 'the run would fail: ' + (reason if reason.startswith(kind) else f'{kind}: {reason}')
            known += f' (from {config.load_from})' if config.get('load_from') else ''
        raise InputError(known) from error


def known_failure(error: Exception, config: Config) -> str | None:
    """What to do about an error of PyTorch, in one line; None for an error of another kind."""
    text = str(error)
    if 'Expected more than 1 value per channel when training' in text:
        batch_size = (config.get('train_dataloader') or {}).get('batch_size')
        return (
            'batch normalisation cannot train with a single value per channel, as where a map of 1 x 1 is pooled '
            f'from one image (train_dataloader.batch_size={batch_size}, or the last batch of an epoch): set '
            'train_dataloader.batch_size=2, with smaller crops if memory is short, and '
            'train_dataloader.drop_last=True; or take another norm_cfg in the heads, such as '
            'dict(type="GN", num_groups=32)'
        )
    if is_out_of_memory(error):
        return (
            'out of memory: take a smaller batch_size of the dataloader or smaller crops, '
            f'model.backbone.with_cp=True, or --amp bfloat16 ({(text.strip() or "MemoryError").splitlines()[0]:.120})'
        )
    return None


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def now() -> float:
    """Seconds on a clock for differences, after what the GPU was told to do is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
