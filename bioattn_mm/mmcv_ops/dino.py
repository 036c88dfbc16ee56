"""DINO with the parameters of mmdet 3.0 to 3.3."""

from mmdet.models import DINO
from mmdet.models.layers import MLP
from torch import Tensor

from ..registry import MODELS


class ReferencePointHead(MLP):
    """MLP from encoded reference boxes to query positions, on every second frequency of the encoding.

    So each coordinate of a box has half of the sines and cosines that the decoder gives, as in mmdet 3.0 to 3.3.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, 4 * embed_dims) to (B, N, embed_dims)."""
        frequencies = x.unflatten(-1, (4, -1, 2))
        return super().forward(frequencies[..., ::2, :].flatten(-3))


@MODELS.register_module()
class CompatibleDINO(DINO):
    """mmdet's DINO, for checkpoints of mmdet 3.0 to 3.3 and with the size that papers print.

    onedl-mmdetection encodes reference points with twice as many features: its `ref_point_head` has 131072 parameters
    more. With the original mmdet, this class changes nothing.
    """

    def _init_layers(self) -> None:
        super()._init_layers()
        if self.decoder.ref_point_head.layers[0].in_features == 4 * self.embed_dims:
            self.decoder.ref_point_head = ReferencePointHead(
                2 * self.embed_dims, self.embed_dims, self.embed_dims, num_layers=2
            )
