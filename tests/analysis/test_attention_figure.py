"""Drawings of attention: where they are bright, what stands beside what, and on which scale."""

import numpy as np
import pytest
import torch
from torch import nn

from bioattn_mm.analysis.attention import Attention, Panel, attention_of_token, relative_weight
from bioattn_mm.analysis.attention_figure import PHOTO, Picture, draw_attention, draw_layers, draw_lines
from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.analysis.images import PreparedImage

from .small_backbones import build

STRIDE = 16
# The model's input, padded from 40 x 60 pixels.
SIZE = (48, 64)
WHOLE = (0, 64, 48, 0)


@pytest.fixture
def image() -> PreparedImage:
    pixels = np.full((40, 60, 3), 128, np.uint8)
    return PreparedImage(None, (40, 60), pixels, torch.zeros(1, 3, *SIZE), {})


def attention_to(*tokens: tuple[int, int], **options) -> Attention:
    """Attention of two heads on 3 x 4 tokens, all of it to one token a head; beside it an even part."""
    values = np.zeros((2, 3, 4), np.float32)
    for head, (row, column) in enumerate(tokens):
        values[head, row, column] = 1
    even = np.full((2, 3, 4), 1 / 12, np.float32)
    panels = [Panel('content', even, WHOLE), Panel('attention', values, WHOLE, **options)]
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
    # A window and pooled tokens together: each pixel has the sum of both.
    window = Panel('window', np.full((1, 1, 1), 0.5, np.float32), (16, 32, 16, 0))
    pooled = Panel('pooled', np.full((1, 1, 1), 0.5, np.float32), WHOLE)
    together = relative_weight([window, pooled], None, SIZE)
    np.testing.assert_allclose((together[0, 16], together[20, 20]), (0.5 * 12 + 0.5, 0.5))
    # What is no share of a softmax: without sign, relative to its own mean.
    signed = Panel('attention', np.array([[[-3.0, 1.0]]], np.float32), WHOLE, is_share=False)
    np.testing.assert_allclose(relative_weight([signed], None, SIZE)[0, [0, 63]], (1.5, 0.5))
    nothing = Panel('attention', np.zeros((1, 1, 2), np.float32), WHOLE, is_share=False)
    assert relative_weight([nothing], None, SIZE).max() == 0


def test_parts_and_heads_of_a_layer(image: PreparedImage) -> None:
    pictures = drawings(draw_attention(image, attention_to((0, 1), (2, 3))))
    assert list(pictures) == [
        'image, in pixels',
        'content\nmean of heads',
        'attention\nmean of heads',
        'attention, head 0, gate 0.25',
        'attention, head 1, gate 0.75',
    ]
    head = pictures['attention, head 0, gate 0.25'].sum(-1)
    assert head.shape == (40, 60)  # without the padding
    assert (head[:16, 16:32] == head.max()).all() and (head == head.max()).sum() == 16 * 16
    # One scale: half of the weight is less bright than all of it, and an even spread lies between that and nothing.
    mean, content = (pictures[f'{name}\nmean of heads'].sum(-1) for name in ('attention', 'content'))
    assert head.max() > mean.max() > content.max() > mean.min()

    pictures = drawings(draw_attention(image, attention_to((0, 1), (2, 3)), 'content', [1]))
    assert list(pictures)[3:] == ['content, head 1, gate 0.75']


def test_layers_and_models(image: PreparedImage) -> None:
    layers = [attention_to((0, 1), (0, 1)), attention_to((2, 0), (2, 0))]
    figure = draw_layers(image, layers)
    assert [axis.get_title() for axis in figure.axes if axis.images].count('blocks.0.attn\nattention') == 2
    wide = PreparedImage(None, (40, 60), np.full((40, 64, 3), 128, np.uint8), torch.zeros(1, 3, *SIZE), {})
    models = [
        Picture(title, of_model, attention, 'attention')
        for title, of_model, attention in zip(('first', 'second'), (image, wide), layers)
    ]
    pictures = drawings(draw_lines([[Picture(PHOTO, image, layers[0]), *models]], columns=2))
    assert list(pictures) == ['image, in pixels', 'first', 'second']
    assert [picture.shape[1] for picture in pictures.values()] == [60, 60, 64]
    brightest = pictures['second'].sum(-1)
    assert (brightest[32:, :16] == brightest.max()).all()


def test_learnable_tokens_without_weights_are_drawn_in_the_window() -> None:
    backbone = build('TransNeXt').eval()
    for block in (block for stage in backbone.stages[:3] for block in stage.blocks):
        nn.init.zeros_(block.attn.learnable_tokens)
    recording = record_attention(backbone, torch.randn(1, 3, 64, 96))[0]
    panels = {panel.name: panel for panel in attention_of_token(recording, (0, 0), 4).panels}
    assert panels['learnable tokens'].extent == (0, 8, 8, 0) and not panels['learnable tokens'].values.any()
