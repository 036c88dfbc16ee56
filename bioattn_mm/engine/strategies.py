"""Strategies of training: DDP is mmengine's Runner's own; FSDP and DeepSpeed are those of its FlexibleRunner."""

from pathlib import Path

import torch
from mmengine._strategy import FSDPStrategy as MMEngineFSDPStrategy
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmpretrain.models.backbones.swin_transformer import SwinBlock
from timm.models.vision_transformer_relpos import RelPosBlock
from torch import nn

from ..errors import InputError
from ..models.backbones.base import Block
from ..models.backbones.pervit import PerViTBlock
from ..registry import FUNCTIONS, STRATEGIES

BLOCKS = (Block, PerViTBlock, RelPosBlock, SwinBlock)


def set_strategy(config: Config, path: str) -> None:
    """Merge a strategy, such as `configs/_base_/strategies/fsdp.py`, into the config of a run.

    Args:
        config: Changed in place.
        path: Config file with `runner_type` and `strategy`.

    Raises:
        InputError: There is no such file, or it has no strategy.
    """
    if not Path(path).is_file():
        raise InputError(f'strategy not found: {path}')
    strategy = Config.fromfile(path)
    if 'strategy' not in strategy or 'runner_type' not in strategy:
        raise InputError(f'{path} is no strategy: expected a config with runner_type and strategy')
    config.merge_from_dict(strategy.to_dict())
    if 'sync_bn' in config and 'DeepSpeed' not in config.strategy.type:
        config.strategy.sync_bn = config.sync_bn
    if 'FSDP' in config.strategy.type and not torch.cuda.is_available():
        config.strategy.model_wrapper.device_id = 'cpu'
        # On the CPU, what PyTorch calls offloading gives tensors whose memory is gone.
        config.strategy.state_dict_cfg = dict(
            state_dict_type='FULL_STATE_DICT',
            state_dict_config=dict(type='FullStateDictConfig', rank0_only=True),
            optim_state_dict_config=dict(type='FullOptimStateDictConfig', rank0_only=True),
        )


@FUNCTIONS.register_module()
def shard_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """FSDP's `auto_wrap_policy`: every block of a backbone is a unit; heads and the rest belong to the outermost one.

    Args:
        module: A module of the model.
        recurse: Whether the question is if its children are to be looked at.
        nonwrapped_numel: Its parameters in no unit yet; not used.
    """
    return recurse or isinstance(module, BLOCKS)


@STRATEGIES.register_module()
class FSDPStrategy(MMEngineFSDPStrategy):
    """mmengine's, except that `paramwise_cfg` sees the parameters as they are in the model.

    FSDP makes a flat shard of every parameter, which `flat_decay_mult` would all take for norms and biases: nothing
    would decay. The groups are therefore made before the model is sharded.
    """

    def prepare(self, model: nn.Module | dict, *, optim_wrapper: dict | None = None, **kwargs) -> tuple:
        """Build, wrap and return what the runner needs; the arguments are mmengine's."""
        if isinstance(optim_wrapper, dict):
            if optim_wrapper.get('type') == 'AmpOptimWrapper':
                optim_wrapper.setdefault('use_fsdp', True)
            model = self.convert_model(self.build_model(model))
            optim_wrapper = build_optim_wrapper(model, optim_wrapper)
        return super().prepare(model, optim_wrapper=optim_wrapper, **kwargs)
