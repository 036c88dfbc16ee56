"""What the benchmarks share: options, models, time and peak memory of a call on the CPU or a GPU, Markdown tables."""

import argparse
import ctypes
import gc
import time
from collections.abc import Callable
from contextlib import nullcontext
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


def make_parser(description: str, repeats: int, cpu_time: bool = False) -> argparse.ArgumentParser:
    """A parser with --device and --repeats, which all benchmarks have, and --cpu-time for a busy machine."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', default='cpu', choices=['cpu', 'cuda'], help='default: %(default)s')
    repeats_help = 'runs of each, of which the fastest counts (default: %(default)s)'
    parser.add_argument('--repeats', type=int, default=repeats, help=repeats_help)
    if cpu_time:
        parser.add_argument('--cpu-time', action='store_true', help='seconds of the processor, of all threads')
    return parser


def clock_of(args: argparse.Namespace) -> Callable[[], float]:
    """The clock that --cpu-time asks for."""
    return time.process_time if getattr(args, 'cpu_time', False) else time.perf_counter


def sides_of(size: str) -> tuple[int, int]:
    """Height and width of 'N' or 'HEIGHTxWIDTH'."""
    sides = [int(side) for side in size.split('x')]
    return sides[0], sides[-1]


def print_title(name: str, args: argparse.Namespace) -> None:
    """The line above the table: what is measured, and on what."""
    device = torch.cuda.get_device_name() if args.device == 'cuda' else f'{torch.get_num_threads()} threads'
    seconds = ', seconds of the processor' if getattr(args, 'cpu_time', False) else ''
    print(f'{name}, {device}, torch {torch.__version__}, fastest of {args.repeats}{seconds}\n')


def print_header(*names: str) -> None:
    """The head of a table in Markdown."""
    print_row(*names)
    print('| --- ' * len(names) + '|')


def print_row(*cells: object) -> None:
    """A row of a table in Markdown."""
    print(f'| {" | ".join(map(str, cells))} |', flush=True)


def autocast(device: str, dtype: torch.dtype) -> nullcontext | torch.autocast:
    """Context of automatic mixed precision; of nothing in float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device, dtype)


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
    with PeakMemory(device) as peak:
        seconds = take_turns({'': function}, device, repeats, clock)['']
    return Measurement(seconds, peak.mebibytes)


def take_turns(
    functions: dict[str, Callable[[], object]], device: str, repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Seconds of the fastest run of each function; they run in turns, so that all see the machine alike."""
    best = dict.fromkeys(functions, float('inf'))
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock()
            function()
            if device == 'cuda':
                torch.cuda.synchronize()
            best[name] = min(best[name], clock() - start)
    return best


def measure_with(args: argparse.Namespace, function: Callable[[], object]) -> Measurement:
    """`measure` on the device, as often and by the clock that the options say."""
    return measure(function, args.device, args.repeats, clock_of(args))


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
