"""DINO with the parameters of mmdet 3.0 to 3.3."""

from mmdet.models import DINO
from mmdet.models.layers import MLP
from torch import Tensor

from ...registry import MODELS


class ReferencePointHead(MLP):
    """The query positions from encoded boxes, of which it reads every second frequency.

    The decoder encodes each of the four coordinates with `embed_dims` features, sines and cosines in turn. Every
    second frequency of them is the encoding with half as many features.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, 4 * embed_dims) to (B, N, embed_dims)."""
        frequencies = x.unflatten(-1, (4, -1, 2))
        return super().forward(frequencies[..., ::2, :].flatten(-3))


@MODELS.register_module()
class CompatibleDINO(DINO):
    """mmdet's DINO, for checkpoints of mmdet 3.0 to 3.3 and with the size that papers print.

    onedl-mmdetection encodes reference points with twice as many features, which makes the decoder's
    `ref_point_head` 131072 parameters larger and refuses those checkpoints. Where mmdet is the original one, this is
    its DINO. Arguments: mmdet's.
    """

    def _init_layers(self) -> None:
        super()._init_layers()
        if self.decoder.ref_point_head.layers[0].in_features == 4 * self.embed_dims:
            self.decoder.ref_point_head = ReferencePointHead(
                2 * self.embed_dims, self.embed_dims, self.embed_dims, num_layers=2
            )
