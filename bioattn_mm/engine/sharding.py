"""Which parts of a model FSDP shards as units."""

from mmpretrain.models.backbones.swin_transformer import SwinBlock
from timm.models.vision_transformer_relpos import RelPosBlock
from torch import nn

from ..models.backbones.base import Block
from ..models.backbones.pervit import PerViTBlock
from ..registry import FUNCTIONS

BLOCKS = (Block, PerViTBlock, RelPosBlock, SwinBlock)


@FUNCTIONS.register_module()
def shard_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """FSDP's `auto_wrap_policy`: every block of a backbone is a unit; heads and the rest belong to the outermost one.

    Args:
        module: A module of the model.
        recurse: Whether the question is if its children are to be looked at.
        nonwrapped_numel: Its parameters in no unit yet; not used.
    """
    return recurse or isinstance(module, BLOCKS)
