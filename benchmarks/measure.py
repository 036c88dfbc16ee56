"""What the benchmarks share: options, time and peak memory of a call on the CPU or a GPU, and tables in Markdown."""

import argparse
import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Measurement:
    """Seconds of the fastest run, and MiB of memory at the peak of all runs beyond what was in use before."""

    seconds: float
    mebibytes: float

    def __str__(self) -> str:
        return f'{time_text(self.seconds)}, {self.mebibytes:.0f} MiB'


def time_text(seconds: float) -> str:
    """Such as '1.25 s' or '31.2 ms'."""
    return f'{seconds:.2f} s' if seconds >= 1 else f'{1e3 * seconds:.3g} ms'


def gains(other: Measurement, ours: Measurement) -> tuple[str, str]:
    """How many times faster `ours` is, and how many times less memory it takes: '' below 1 MiB, which is noise."""
    memory = f'{other.mebibytes / ours.mebibytes:.1f}x' if ours.mebibytes >= 1 else ''
    return f'{other.seconds / ours.seconds:.1f}x', memory


def make_parser(description: str, repeats: int) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks, --device and --repeats."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', default='cpu', choices=['cpu', 'cuda'], help='default: %(default)s')
    parser.add_argument(
        '--repeats',
        type=int,
        default=repeats,
        help='runs of each, of which the fastest counts (default: %(default)s)',
    )
    return parser


def print_title(name: str, args: argparse.Namespace) -> None:
    """The line above the table: what is measured, and on what."""
    threads = torch.get_num_threads()
    print(f'{name}, float32, {args.device}, {threads} threads, fastest of {args.repeats}\n')


def print_header(*names: str) -> None:
    """The head of a table in Markdown."""
    print_row(*names)
    print('| --- ' * len(names) + '|')


def print_row(*cells: object) -> None:
    """A row of a table in Markdown."""
    print(f'| {" | ".join(map(str, cells))} |', flush=True)


def training_step(module: nn.Module, *inputs: Tensor) -> Callable[[], None]:
    """A function that runs a module and its backward pass."""

    def step() -> None:
        module.zero_grad()
        outputs = module(*inputs)
        sum(output.mean() for output in (outputs if isinstance(outputs, tuple) else [outputs])).backward()

    return step


def measure(
    function: Callable[[], object],
    device: str = 'cpu',
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Run `function` `repeats` times; the fastest run, by `clock`, and the highest peak of memory count."""
    seconds = []
    with PeakMemory(device) as peak:
        for _ in range(repeats):
            start = clock()
            function()
            if device == 'cuda':
                torch.cuda.synchronize()
            seconds.append(clock() - start)
    return Measurement(min(seconds), peak.mebibytes)


def measure_layer(layer: nn.Module, x: Tensor, training: bool, args: argparse.Namespace) -> Measurement:
    """A layer after a warm-up: forward in eval mode, or forward and backward in train mode."""
    layer.train(training)
    run = training_step(layer, x) if training else torch.no_grad()(lambda: layer(x))
    run()
    return measure(run, args.device, args.repeats)


class PeakMemory:
    """Context that measures the peak of memory above its level on entry; on the CPU, resident memory on Linux."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.mebibytes = 0.0

    def __enter__(self) -> 'PeakMemory':
        gc.collect()
        if self.device == 'cuda':
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            ctypes.CDLL(None).malloc_trim(0)
            # Linux takes the peak of resident memory from here on.
            with open('/proc/self/clear_refs', 'w', encoding='utf-8') as file:
                file.write('5')
            self._before = _resident_peak()
        return self

    def __exit__(self, *exception: object) -> None:
        after = torch.cuda.max_memory_allocated() if self.device == 'cuda' else _resident_peak()
        self.mebibytes = (after - self._before) / 2**20


def _resident_peak() -> int:
    with open('/proc/self/status', encoding='utf-8') as file:
        line = next(line for line in file if line.startswith('VmHWM:'))
    return int(line.split()[1]) * 1024
