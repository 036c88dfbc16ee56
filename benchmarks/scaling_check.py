#!/usr/bin/env python
"""Check the model of benchmarks/scaling.py against processes on this machine, over gloo, without a GPU.

Its arithmetic is given what two and four processes measure of their own machine: the time of a step without
exchange, the bandwidth of a large all-reduce, the time of a small one. Against what it then says are set the bytes
that a process writes to its sockets, how much of them was sent before the backward pass was over, and the time of
whole steps.
"""

import argparse
import math
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from measure import print_header, print_row
from scaling import BUCKET_BYTES, Step, exposed_seconds, sent_share
from torch import Tensor
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from bioattn_mm.models.backbones import TransNeXt

LARGE = 8 * 2**20  # numbers of the all-reduce that the bandwidth is of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--processes', type=int, nargs='+', default=[2, 4], help='default: 2 4')
    parser.add_argument('--arch', default='micro', help='of TransNeXt (default: micro)')
    parser.add_argument('--size', type=int, default=96, help='height and width of the two images (default: 96)')
    parser.add_argument('--repeats', type=int, default=4, help='steps of each kind, the fastest counts (default: 4)')
    args = parser.parse_args()
    print(f'TransNeXt-{args.arch}, 2 images of {args.size} pixels a process, gloo, one thread a process\n')
    print_header(
        'processes', 'gradients', 'in calls', 'sent by a process: predicted', 'measured', 'sent before the backward '
        'pass was over: predicted', 'measured', 'step alone', 'bandwidth', 'small all-reduce', 'step: predicted',
        'measured', 'without overlap',
    )  # fmt: skip
    for processes in args.processes:
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = free.getsockname()[1]
        results = torch.multiprocessing.get_context('spawn').SimpleQueue()
        torch.multiprocessing.spawn(measure_rank, (processes, port, args, results), nprocs=processes)
        print_row(processes, *cells(processes, results.get()))


def cells(processes: int, measured: dict) -> list[str]:
    """What is predicted beside what was measured."""
    size, calls = measured['gradient_bytes'], measured['calls']
    sent = sent_share(processes) * size
    bandwidth = sent_share(processes) * 4 * LARGE / measured['large']
    transfer, messages = sent / bandwidth, calls * measured['small']
    step = Step(0.0, size, calls, 2)
    predicted = measured['alone'] + exposed_seconds(step, measured['alone'], transfer, messages)
    serial = measured['alone'] + transfer + messages
    early = 1 - min(1.0, BUCKET_BYTES / size)
    return [
        f'{size / 1e6:.1f} MB',
        f'{calls}',
        f'{sent / 1e6:.1f} MB',
        f'{measured["sent"] / 1e6:.1f} MB ({measured["sent"] / sent - 1:+.1%})',
        f'{early:.0%}',
        f'{measured["early"]:.0%}',
        f'{1e3 * measured["alone"]:.0f} ms',
        f'{bandwidth / 1e9:.2f} GB/s',
        f'{1e3 * measured["small"]:.2f} ms',
        f'{1e3 * predicted:.0f} ms ({predicted / measured["step"] - 1:+.0%})',
        f'{1e3 * measured["step"]:.0f} ms',
        f'{1e3 * serial:.0f} ms ({serial / measured["step"] - 1:+.0%})',
    ]


def measure_rank(rank: int, processes: int, port: int, args: argparse.Namespace, results: object) -> None:
    """One of the processes; the first puts what it measured into a queue."""
    torch.set_num_threads(1)
    dist.init_process_group('gloo', f'tcp://127.0.0.1:{port}', rank=rank, world_size=processes)
    torch.manual_seed(0)
    model = DistributedDataParallel(TransNeXt(args.arch))
    images = torch.randn(2, 3, args.size, args.size)
    run_step(model, images)  # DDP orders its buckets after the first step
    run_step(model, images)

    written = bytes_written()
    run_step(model, images)
    sent = bytes_written() - written
    alone = fastest(lambda: run_step(model, images, exchange=False), args.repeats)
    step = fastest(lambda: run_step(model, images), args.repeats)
    numbers = torch.ones(LARGE)
    large = fastest(lambda: dist.all_reduce(numbers), args.repeats)
    small = fastest(lambda: dist.all_reduce(numbers[:1]), 5 * args.repeats)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run_step(model, images)
    calls = [event for event in profiler.events() if event.name == 'gloo:all_reduce']
    sizes = [4 * sum(math.prod(shape) for shape in event.input_shapes) for event in calls]
    over = max(event.time_range.end for event in profiler.events() if event.name.startswith('autograd::engine'))
    # Of a call that goes on after the backward pass, the part of its time before counts.
    before = [
        size * min(1.0, (over - call.time_range.start) / max(call.time_range.elapsed_us(), 1))
        for size, call in zip(sizes, calls)
        if call.time_range.start < over
    ]
    if rank == 0:
        found = dict(gradient_bytes=sum(sizes), calls=len(calls), early=sum(before) / sum(sizes), sent=sent)
        results.put(dict(found, alone=alone, step=step, large=large, small=small))
    dist.barrier()
    dist.destroy_process_group()


def run_step(model: DistributedDataParallel, images: Tensor, exchange: bool = True) -> None:
    """Forward and backward pass, with or without the exchange of gradients."""
    model.zero_grad(set_to_none=True)
    with nullcontext() if exchange else model.no_sync():
        sum(output.mean() for output in model(images)).backward()


def fastest(function: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of several runs, which all processes begin together."""
    seconds = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def bytes_written() -> int:
    """What this process has given to write calls: gloo writes to its sockets, and nothing else writes meanwhile."""
    counters = dict(line.split(': ') for line in Path('/proc/self/io').read_text(encoding='utf-8').splitlines())
    return int(counters['wchar'])


if __name__ == '__main__':
    main()
