"""DINO as mmdet 3.0 to 3.3 define it, whichever mmdet is installed."""

import torch
from mmdet.models.layers import coordinate_to_encoding

from bioattn_mm.mmcv_ops.dino import ReferencePointHead


def test_reference_points_are_encoded_with_half_the_features() -> None:
    boxes = torch.rand(2, 5, 4)
    head = ReferencePointHead(64, 32, 32, num_layers=2)
    expected = coordinate_to_encoding(boxes, num_feats=16)
    for index, layer in enumerate(head.layers):
        expected = layer(expected)
        expected = expected.relu() if index == 0 else expected
    torch.testing.assert_close(head(coordinate_to_encoding(boxes, num_feats=32)), expected)
