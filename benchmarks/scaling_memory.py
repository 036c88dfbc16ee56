"""Memory of a GPU in training, by strategy: computed from the model, and checked on the meta device.

The bytes of parameters, gradients and the optimizer's state follow from the number of parameters; those of
activations are of the tensors that autograd saves in a forward pass in PyTorch's FakeTensorMode, which computes
nothing. The check shards the model as FSDP does, on the meta device, for any number of ranks, takes a step of AdamW,
and counts what the first rank then holds. Nothing here knows the buffers of cuDNN, cuBLAS and NCCL, and gaps of the
allocator.
"""

from dataclasses import dataclass

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from bioattn_mm.analysis.saved_activations import saved_bytes

FLOAT = 4  # bytes
# reduce_bucket_size of configs/_base_/strategies/deepspeed.py, in numbers: a buffer of that size, from the first
# step on.
DEEPSPEED_BUCKET = 50_000_000
# Images of the COCO configs: 800 x 1333 pixels at most, padded to a multiple of 32.
DETECTION_SIZE = (800, 1344)


@dataclass
class Memory:
    """What a training step holds, in bytes.

    Attributes:
        parameters: The model's.
        block: Parameters of its largest block, a unit of FSDP.
        rest: Parameters outside of all blocks, another unit.
        activations: What autograd saves for a batch: of the backbone, the neck and UPerNet's heads. RoI heads and
            decoders with queries, whose tensors depend on the objects in the images, are not in it.
    """

    parameters: int
    block: int
    rest: int
    activations: int

    def data_parallel(self) -> int:
        """DDP: parameters, gradients, the buckets that they are copied to, AdamW's two averages."""
        return 5 * self.parameters + self.activations

    def zero_2(self, num_gpus: int) -> int:
        """ZeRO-2: parameters whole; gradients, averages and a copy of the parameters divided; DeepSpeed's bucket."""
        whole = self.parameters + FLOAT * DEEPSPEED_BUCKET
        return whole + 4 * self.parameters // num_gpus + self.activations

    def fully_sharded(self, num_gpus: int) -> int:
        """FSDP: everything divided; at the peak the rest and two blocks are gathered, the rest's gradients whole.

        An upper bound: gradients are complete when the activations are gone.
        """
        gathered = 2 * self.rest + max(self.rest, 4 * self.block)
        return self.shards(num_gpus) + gathered + self.activations

    def shards(self, num_gpus: int) -> int:
        """FSDP's parameters, gradients and averages of one GPU."""
        return 4 * self.parameters // num_gpus


def memory_of(config: Config) -> Memory:
    """The memory of a step of a config, with its batch and at the size that it trains on."""
    with FakeTensorMode():
        model = build(config)
        size = config.model.data_preprocessor.get('size') or DETECTION_SIZE
        images = torch.empty(config.train_dataloader.batch_size, 3, *size)

        def forward() -> list[Tensor]:
            features = model.extract_feat(images)
            heads = [getattr(model, name, None) for name in ('decode_head', 'auxiliary_head')]
            upernet = [head for head in heads if hasattr(head, 'conv_seg') and not hasattr(head, 'query_embed')]
            return [*features, *(head(features) for head in upernet)]

        activations = saved_bytes(forward, model)
    units = [bytes_of(block.parameters()) for block in blocks_of(model)]
    parameters = bytes_of(model.parameters())
    return Memory(parameters, max(units), parameters - sum(units), activations)


def shards_on_meta(config: Config, num_gpus: int) -> int:
    """Bytes that rank 0 holds of parameters, gradients and AdamW's averages, sharded by FSDP on the meta device."""
    torch.distributed.init_process_group('fake', rank=0, world_size=num_gpus, store=FakeStore())
    try:
        mesh = init_device_mesh('cpu', (num_gpus,))
        with torch.device('meta'):
            model = build(config)
        for module in (*blocks_of(model), model):
            fully_shard(module, mesh=mesh)
        held = [local(parameter) for parameter in model.parameters()]
        for tensor in held:
            tensor.grad = torch.empty_like(tensor)
        optimizer = torch.optim.AdamW(held)
        optimizer.step()
        averages = [state[key] for state in optimizer.state.values() for key in ('exp_avg', 'exp_avg_sq')]
        return bytes_of([*held, *(tensor.grad for tensor in held), *averages])
    finally:
        torch.distributed.destroy_process_group()


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The units of FSDP besides the rest of the model."""
    return list(model.backbone.block_modules())


def local(parameter: nn.Parameter) -> nn.Parameter:
    """The part of a parameter that a rank holds."""
    return nn.Parameter(parameter.detach().to_local() if isinstance(parameter, DTensor) else parameter.detach())


def bytes_of(tensors: list[Tensor]) -> int:
    """The bytes of tensors, each of which has its own."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def build(config: Config) -> nn.Module:
    """The model of a config without weights, on the device or in the mode that is set."""
    init_default_scope(config.default_scope)
    settings = Config(config.model.to_dict())
    settings['backbone']['init_cfg'] = None
    for key in ('decode_head', 'auxiliary_head'):
        if settings.get(key, {}).get('norm_cfg', {}).get('type') == 'SyncBN':  # it needs a GPU
            settings[key]['norm_cfg'] = dict(settings[key]['norm_cfg'], type='BN')
    return MODELS.build(settings).train()
