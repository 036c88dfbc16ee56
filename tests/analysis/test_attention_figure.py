"""Drawings of attention: where they are bright, what stands beside what, and on which scale."""

import numpy as np
import pytest
import torch
from torch import nn

from bioattn_mm.analysis.attention import Attention, Panel, attention_of_token, relative_weight, weight_per_pixel
from bioattn_mm.analysis.attention_figure import PHOTO, Picture, draw_attention, draw_layers, draw_lines
from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.analysis.images import PreparedImage
from bioattn_mm.errors import InputError

from .small_backbones import build

STRIDE = 16
# The model's input, padded from 40 x 60 pixels.
SIZE = (48, 64)
WHOLE = (0, 64, 48, 0)


def image(width: int = 60) -> PreparedImage:
    return PreparedImage(None, (40, 60), np.full((40, width, 3), 128, np.uint8), torch.zeros(1, 3, *SIZE), {})


def attention_to(*tokens: tuple[int, int]) -> Attention:
    """Attention of two heads on 3 x 4 tokens, all of it to one token a head; beside it an even part."""
    values = np.zeros((2, 3, 4), np.float32)
    for head, (row, column) in enumerate(tokens):
        values[head, row, column] = 1
    even = np.full((2, 3, 4), 1 / 12, np.float32)
    panels = [Panel('content', even, WHOLE), Panel('attention', values, WHOLE)]
    return Attention('blocks.0.attn', panels, (1, 2), (3, 4), STRIDE, [0.25, 0.75])


def drawings(figure) -> dict[str, np.ndarray]:
    """The pictures of a figure by their titles."""
    return {axis.get_title(): np.asarray(axis.images[0].get_array()) for axis in figure.axes if axis.images}


def test_relative_weights() -> None:
    attention = attention_to((0, 1), (2, 3))
    content, whole = (attention.parts[name] for name in ('content', 'attention'))
    np.testing.assert_allclose(relative_weight(content, None, SIZE), 1, rtol=1e-6)
    head = relative_weight(whole, 0, SIZE)
    assert head.mean() == pytest.approx(1) and (head[:16, 16:32] == 12).all() and head[:, :16].max() == 0
    # What is no share of a softmax: without sign, relative to its own mean.
    signed = Panel('attention', np.array([[[-3.0, 1.0]]], np.float32), WHOLE, is_share=False)
    np.testing.assert_allclose(relative_weight([signed], None, SIZE)[0, [0, 63]], (1.5, 0.5))
    nothing = Panel('attention', np.zeros((1, 1, 2), np.float32), WHOLE, is_share=False)
    assert relative_weight([nothing], None, SIZE).max() == 0


def test_weight_per_pixel_adds_keys_of_different_sizes() -> None:
    window = Panel('window', np.array([[[0.1, np.nan]], [[0.3, 0.1]]], np.float32), (4, 12, 8, 4))
    pooled = Panel('pooled', np.array([[[0.9]], [[0.6]]], np.float32), (0, 16, 16, 0))
    weights = weight_per_pixel([window, pooled], 1, (14, 16))
    assert weights[5, 5] == pytest.approx(0.3 / 16 + 0.6 / 256)
    assert weights[5, 9] == pytest.approx(0.1 / 16 + 0.6 / 256)
    assert weights[13, 15] == weights[3, 4] == pytest.approx(0.6 / 256)
    mean = weight_per_pixel([window], None, (14, 16))
    assert mean[4, 4] == pytest.approx(0.2 / 16) and mean.sum() == pytest.approx(0.25)
    with pytest.raises(InputError, match='the head must be 0 to 1 in this layer, got 2'):
        weight_per_pixel([window], 2, (14, 16))


def test_parts_and_heads_of_a_layer() -> None:
    pictures = drawings(draw_attention(image(), attention_to((0, 1), (2, 3))))
    means = [f'{part}\nmean of heads' for part in ('content', 'attention')]
    heads = ['attention, head 0, gate 0.25', 'attention, head 1, gate 0.75']
    assert list(pictures) == ['image, in pixels', *means, *heads]
    content, mean, head = (pictures[title].sum(-1) for title in (*means, heads[0]))
    assert head.shape == (40, 60)  # without the padding
    assert (head[:16, 16:32] == head.max()).all() and (head == head.max()).sum() == 16 * 16
    # One scale: half of the weight is less bright than all of it, and an even spread lies between that and nothing.
    assert head.max() > mean.max() > content.max() > mean.min()

    pictures = drawings(draw_attention(image(), attention_to((0, 1), (2, 3)), 'content', [1]))
    assert list(pictures)[3:] == ['content, head 1, gate 0.75']


def test_layers_and_models() -> None:
    layers = [attention_to((0, 1), (0, 1)), attention_to((2, 0), (2, 0))]
    figure = draw_layers(image(), layers)
    assert [axis.get_title() for axis in figure.axes if axis.images].count('blocks.0.attn\nattention') == 2
    models = [Picture('first', image(), layers[0], 'attention'), Picture('second', image(64), layers[1], 'attention')]
    pictures = drawings(draw_lines([[Picture(PHOTO, image(), layers[0]), *models]], columns=2))
    assert list(pictures) == ['image, in pixels', 'first', 'second']
    assert [picture.shape[1] for picture in pictures.values()] == [60, 60, 64]
    brightest = pictures['second'].sum(-1)
    assert (brightest[32:, :16] == brightest.max()).all()


def test_learnable_tokens_without_weights_are_drawn_in_the_window() -> None:
    backbone = build('TransNeXt').eval()
    nn.init.zeros_(backbone.stages[0].blocks[0].attn.learnable_tokens)
    recording = record_attention(backbone, torch.randn(1, 3, 64, 96))[0]
    panels = {panel.name: panel for panel in attention_of_token(recording, (0, 0), 4).panels}
    assert panels['learnable tokens'].extent == (0, 8, 8, 0) and not panels['learnable tokens'].values.any()
