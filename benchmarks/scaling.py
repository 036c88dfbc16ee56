#!/usr/bin/env python
"""Predict the efficiency of training on 8 to 4096 GPUs, and the memory of each, from what a training step computes,
sends and keeps.

Measured on the CPU are the multiply-adds of a step, by PyTorch's counter, and the bytes that two processes
all-reduce, by the profiler. The rest is arithmetic with the rates of the options: see benchmarks/scaling.md.
"""

import argparse
import logging
import math
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import torch
from measure import print_header, print_row
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner, set_random_seed
from scaling_memory import memory_of, shards_on_meta
from torch import multiprocessing
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from bioattn_mm.analysis.flops import FORMULAS
from bioattn_mm.run_config.mini import ensure_mini_data, make_mini

CONFIGS = [
    'configs/transnext/mask_rcnn_tiny_coco.py',
    'configs/transnext/mask_rcnn_base_coco.py',
    'configs/transnext/dino_4scale_tiny_coco.py',
    'configs/transnext/upernet_tiny_ade20k.py',
    'configs/transnext/mask2former_tiny_ade20k.py',
    'configs/convit/mask_rcnn_tiny_coco.py',
    'configs/pervit/upernet_medium_ade20k.py',
    'configs/gab/mask_rcnn_swin_small_coco.py',
    'configs/vars/mask_rcnn_rvt_tiny_vars_sd_coco.py',
]
GPUS = (8, 64, 512, 4096)
GPUS_A_MACHINE = 8
BUCKET_BYTES = 25 * 2**20  # of DistributedDataParallel
# What may be wrong with the assumptions: changes of the options. A faster GPU waits for more of its time.
WRONG = {
    'as assumed': lambda args: {},
    'GPUs compute twice as fast': lambda args: dict(rate=2 * args.rate),
    'half the bandwidth in a machine': lambda args: dict(machine_bandwidth=args.machine_bandwidth / 2),
    'half the bandwidth between machines': lambda args: dict(network_bandwidth=args.network_bandwidth / 2),
    'twice the latency': lambda args: dict(latency=2 * args.latency),
    'nothing overlaps': lambda args: dict(overlap=False),
    'messages of a ring, 2 (n - 1) a call, not of a tree, 2 log2 n': lambda args: dict(tree=False),
}
TABLES = ('time', 'memory')
# Images of a 1x schedule: 12 epochs of COCO's training images with objects; 160 000 steps of 16 on ADE20K.
IMAGES = dict(mmdet=12 * 117266, mmseg=160000 * 16)


@dataclass
class Step:
    """A step of one GPU: what it computes, and what it sends to the others."""

    multiply_adds: float
    sent_bytes: int
    num_calls: int
    batch_size: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='*', default=CONFIGS, metavar='CONFIG', help='default: nine of all systems')
    parser.add_argument('--tables', nargs='+', choices=TABLES, default=TABLES, help='default: both')
    parser.add_argument('--rate', type=float, default=15.0, help='multiply-adds a second of a GPU, in 1e12')
    parser.add_argument('--machine-bandwidth', type=float, default=150.0, help='GB/s of a GPU in its machine')
    parser.add_argument('--network-bandwidth', type=float, default=25.0, help='GB/s of a GPU to other machines')
    parser.add_argument('--latency', type=float, default=20.0, help='microseconds of a message')
    parser.set_defaults(overlap=True, tree=True)
    args = parser.parse_args()

    if 'time' in args.tables:
        print_times(args)
    if 'memory' in args.tables:
        print_memory(args.configs)


def print_times(args: argparse.Namespace) -> None:
    """What a step takes, and what of it is waiting, for each number of GPUs."""
    ensure_mini_data()
    print(
        f'{args.rate:g}e12 multiply-adds a second, {args.machine_bandwidth:g} GB/s in a machine of {GPUS_A_MACHINE}, '
        f'{args.network_bandwidth:g} GB/s between machines, {args.latency:g} us a message\n'
    )
    gpus = (f'{count} GPUs' for count in GPUS)
    print_header('config', 'multiply-adds of a step', 'all-reduced', 'in calls', 'compute', *gpus)
    steps = []
    for path in args.configs:
        config = Config.fromfile(path)
        step = Step(count_multiply_adds(config), *communication(config), config.train_dataloader.batch_size)
        steps.append(step)
        compute = step.multiply_adds / (args.rate * 1e12)
        cells = [
            f'{Path(path).parent.name}/{Path(path).stem}',
            f'{step.multiply_adds / 1e12:.2f}e12',
            f'{step.sent_bytes / 1e6:.0f} MB',
            f'{step.num_calls}',
            f'{1e3 * compute:.0f} ms',
        ]
        for count in GPUS:
            transfer, messages = all_reduce_seconds(step, count, args)
            exposed = exposed_seconds(step, compute, transfer, messages)
            num_steps = math.ceil(IMAGES[config.default_scope] / (step.batch_size * count))
            slow, fast = (100 * compute / (compute + waiting) for waiting in (transfer + messages, exposed))
            hours = num_steps * (compute + exposed) / 3600
            cells.append(f'{1e3 * (transfer + messages):.1f} ms, {slow:.0f} to {fast:.0f} %, {hours:.2g} h')
        print_row(*cells)
    print_assumptions(steps, args)


def print_memory(configs: list[str]) -> None:
    """What a GPU holds by strategy, and what the shards of FSDP are on the meta device."""
    print('\nGiB of a GPU; the last columns: shards of FSDP, 4 P / n and counted on the meta device, in MiB\n')
    print_header(
        'config', 'parameters', 'activations', 'DDP', 'ZeRO-2, 8 GPUs', 'FSDP, 8', 'FSDP, 64', 'FSDP, 512',
        'shards, 8', 'shards, 512',
    )  # fmt: skip
    for path in configs:
        config = Config.fromfile(path)
        memory = memory_of(config)
        amounts = [memory.parameters, memory.activations, memory.data_parallel(), memory.zero_2(8)]
        amounts += [memory.fully_sharded(count) for count in (8, 64, 512)]
        shards = [
            f'{memory.shards(count) / 2**20:.2f}, {shards_on_meta(config, count) / 2**20:.2f}' for count in (8, 512)
        ]
        name = f'{Path(path).parent.name}/{Path(path).stem}'
        print_row(name, *(f'{amount / 2**30:.2f}' for amount in amounts), *shards)


def efficiency(step: Step, num_gpus: int, args: argparse.Namespace) -> float:
    """The part of a step in which a GPU computes."""
    compute = step.multiply_adds / (args.rate * 1e12)
    transfer, messages = all_reduce_seconds(step, num_gpus, args)
    waiting = exposed_seconds(step, compute, transfer, messages) if args.overlap else transfer + messages
    return compute / (compute + waiting)


def print_assumptions(steps: list[Step], args: argparse.Namespace) -> None:
    """How much of the efficiency hangs on each assumption: the mean of all configs if it is wrong."""
    print('\nEfficiency, the mean of these configs, if one assumption is wrong\n')
    print_header('assumption', *(f'{count} GPUs' for count in GPUS))
    for name, change in WRONG.items():
        wrong = argparse.Namespace(**{**vars(args), **change(args)})
        means = (100 * sum(efficiency(step, count, wrong) for step in steps) / len(steps) for count in GPUS)
        print_row(name, *(f'{mean:.0f} %' for mean in means))


def all_reduce_seconds(step: Step, num_gpus: int, args: argparse.Namespace) -> tuple[float, float]:
    """Seconds to send 2 (n - 1) / n times the bytes at the slowest rate, and seconds of all messages."""
    bandwidth = args.machine_bandwidth if num_gpus <= GPUS_A_MACHINE else args.network_bandwidth
    transfer = sent_share(num_gpus) * step.sent_bytes / (bandwidth * 1e9)
    messages = 2 * math.log2(num_gpus) if args.tree else 2 * (num_gpus - 1)
    return transfer, step.num_calls * messages * args.latency * 1e-6


def sent_share(num_gpus: int) -> float:
    """How often each byte is sent by a GPU in an all-reduce of a ring."""
    return 2 * (num_gpus - 1) / num_gpus


def exposed_seconds(step: Step, compute: float, transfer: float, messages: float) -> float:
    """Seconds that a step waits: all buckets but the last are sent during the backward pass, 2/3 of the step."""
    last = transfer * min(1.0, BUCKET_BYTES / step.sent_bytes)
    return messages + last + max(0.0, transfer - last - 2 / 3 * compute)


def count_multiply_adds(config: Config) -> float:
    """Multiply-adds of a step with the config's batch and image size: forward, and twice as many backward."""
    mini = make_mini(config)
    mini.train_dataloader.dataset.pipeline = config.train_dataloader.dataset.pipeline
    model, batch = model_and_batch(config, mini, config.train_dataloader.batch_size)
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        model(**model.data_preprocessor(batch, training=True), mode='loss')
    return 3 * counter.get_total_flops() / 2


def communication(config: Config) -> tuple[int, int]:
    """Bytes that each of two processes all-reduces in a step, and the number of calls."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    results = multiprocessing.get_context('spawn').SimpleQueue()
    multiprocessing.spawn(_profile_step, (port, config.filename, results), nprocs=2)
    return results.get()


def _profile_step(rank: int, port: int, path: str, results: multiprocessing.SimpleQueue) -> None:
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo', rank=rank, world_size=2)
    config = Config.fromfile(path)
    mini = make_mini(config)
    pipeline = mini.train_dataloader.dataset.pipeline
    if config.default_scope == 'mmdet':
        # Gradients do not depend on the image size; but DINO needs as many tokens as it has queries.
        resize = dict(type='Resize', scale=(384, 256), keep_ratio=False)
        mini.train_dataloader.dataset.pipeline = [*pipeline[:2], resize, pipeline[-1]]
    model, batch = model_and_batch(config, mini, mini.train_dataloader.batch_size)
    parallel = MMDistributedDataParallel(model, broadcast_buffers=False)
    optim_wrapper = build_optim_wrapper(parallel, dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.0)))
    parallel.train_step(batch, optim_wrapper)  # in the first step, DDP orders its buckets
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        parallel.train_step(batch, optim_wrapper)
    if rank == 0:
        sizes = [
            4 * sum(math.prod(shape) for shape in event.input_shapes)
            for event in profiler.events()
            if event.name == 'gloo:all_reduce'
        ]
        results.put((sum(sizes), len(sizes)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def model_and_batch(config: Config, mini: Config, batch_size: int) -> tuple[torch.nn.Module, dict]:
    """The model of a config with random weights, and a batch of miniature data."""
    logging.disable(logging.INFO)  # mmengine's, of every parameter
    set_random_seed(0)  # DINO's images are resized at random
    DefaultScope.get_instance(config.filename, scope_name=config.default_scope)
    settings = config.model.to_dict()
    settings['backbone']['init_cfg'] = None
    settings = Config(settings)
    for key in ('decode_head', 'auxiliary_head'):
        if settings.get(key, {}).get('norm_cfg', {}).get('type') == 'SyncBN':  # its messages are small
            settings[key].norm_cfg.type = 'BN'
    dataloader = mini.train_dataloader
    dataloader.update(batch_size=batch_size, num_workers=0, persistent_workers=False)
    batch = next(iter(Runner.build_dataloader(dataloader, seed=0)))
    model = MODELS.build(settings)
    model.init_weights()
    return model.train(), batch


if __name__ == '__main__':
    main()
