"""The page itself, in Gradio: controls, and what they show. What is computed comes from `explorer`."""

import html
from dataclasses import dataclass
from pathlib import Path

import gradio as gr
import numpy as np

from ..analysis.attention_panels import ATTENTION, weight_per_pixel
from ..analysis.heat import draw_heat
from ..analysis.receptive_field import area_fractions
from ..errors import InputError
from ..inference.predictor import is_out_of_memory
from .explorer import Explorer, Prediction, View
from .pictures import (
    DARKEST,
    color_bar,
    draw_prediction,
    field_heat,
    file_pixel,
    fit,
    fitted_size,
    legend_of,
    mark,
    mark_pixel,
)

# Seconds: how often temporary files are looked through, and their age when they are removed.
CLEANING = (600, 3600)
MEAN = -1  # stands for the mean of all heads
HINT = 'Drop an image; then click a pixel of a picture to see what it attends to, and on which pixels it depends.'
# Fonts of the user's own machine: Gradio's themes otherwise ask another server for theirs.
THEME = gr.themes.Default(
    font=['system-ui', 'sans-serif'], font_mono=['ui-monospace', 'monospace'], spacing_size='sm', text_size='sm'
)
CSS = """
.legend {display: flex; flex-wrap: wrap; gap: 2px 12px; height: 5em; overflow-y: auto; align-content: flex-start}
.entry {white-space: nowrap}
.swatch {display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.35em; border: 1px solid #8888;
         vertical-align: -0.1em}
.bar {display: inline-block; width: 7em; height: 0.8em; vertical-align: -0.1em}
.scale {white-space: nowrap}
"""


@dataclass
class Column:
    """The components that show one view of the model."""

    box: gr.Column
    bias_mode: gr.Dropdown
    size: gr.Dropdown
    prediction: gr.Image
    about_prediction: gr.HTML
    attention: gr.Image
    about_attention: gr.HTML
    field: gr.Image
    about_field: gr.HTML

    @property
    def shown(self) -> list[gr.Image | gr.HTML]:
        """What depends on the image."""
        pictures = [self.prediction, self.attention, self.field]
        return [*pictures, self.about_prediction, self.about_attention, self.about_field]


class Page:
    """The page for one model.

    Args:
        explorer: The model.
        title: Heading, such as the names of config and checkpoint.

    Attributes:
        blocks: Gradio's app.
    """

    def __init__(self, explorer: Explorer, title: str) -> None:
        self.explorer = explorer
        is_detector = explorer.predictor.task == 'detection'
        with gr.Blocks(title=title, analytics_enabled=False, delete_cache=CLEANING, fill_width=True) as self.blocks:
            gr.Markdown(f'### {title}\n{HINT}')
            self.query = gr.State()
            with gr.Row():
                with gr.Column(scale=2, min_width=240):
                    self.upload = gr.File(label='Image', file_types=['image'], height=130, elem_id='upload')
                    self.layer = gr.Checkbox(True, label='Show the prediction', elem_id='layer')
                    self.opacity = gr.Slider(0, 1, 0.6, step=0.05, label='Its opacity', elem_id='opacity')
                    self.score_thr = gr.Slider(
                        0, 1, 0.3, step=0.05, label='Lowest score of objects', visible=is_detector, elem_id='score'
                    )
                    self.compare = gr.Checkbox(
                        bool(explorer.bias_modes), label='Two settings side by side', elem_id='compare'
                    )
                    layers = list(explorer.layers)
                    self.attention_layer = gr.Dropdown(
                        layers, value=layers[len(layers) // 2], label='Attention layer', elem_id='attention_layer'
                    )
                    choices = self._choices(self.attention_layer.value)
                    self.map = gr.Dropdown(**choices[0], label='Part of the attention', elem_id='map')
                    self.head = gr.Dropdown(**choices[1], label='Head', elem_id='head')
                    outputs = explorer.outputs
                    self.output = gr.Dropdown(
                        [(f'output {output} of the backbone', index) for index, output in enumerate(outputs)],
                        value=len(outputs) // 2,
                        label='Receptive field of',
                        elem_id='output',
                    )
                self.columns = [self._column(number) for number in (0, 1)]
        with self.blocks:
            self._connect()

    def _column(self, number: int) -> Column:
        """Lay out one view: at first the config's own settings, and beside it others."""
        explorer = self.explorer
        modes, sizes = explorer.bias_modes, explorer.sizes
        larger = min((size for size in sizes if size > explorer.size), default=None)
        with gr.Column(scale=5, min_width=320, visible=number == 0 or bool(modes)) as box:
            with gr.Row():
                bias_mode = gr.Dropdown(
                    modes or [''],
                    value=modes[number] if modes else '',
                    label='Position bias',
                    visible=bool(modes),
                    elem_id=f'bias_mode_{number}',
                )
                size = gr.Dropdown(
                    [(f'{size} pixels' + " (the config's)" * (size == explorer.size), size) for size in sizes],
                    value=larger if number and not modes else explorer.size,
                    label='Shorter side of the input',
                    visible=bool(sizes),
                    elem_id=f'size_{number}',
                )
            parts = []
            for name, label in (
                ('prediction', 'Prediction'),
                ('attention', 'Attention of the pixel'),
                ('field', 'Effective receptive field of the pixel'),
            ):
                image = gr.Image(
                    label=label,
                    format='png',
                    interactive=False,
                    buttons=['download', 'fullscreen'],
                    height=320,
                    elem_id=f'{name}_{number}',
                )
                parts += [image, gr.HTML(elem_id=f'about_{name}_{number}')]
        return Column(box, bias_mode, size, *parts)

    def _connect(self) -> None:
        """Say what happens when."""
        shown = [component for column in self.columns for component in column.shown]
        choices = [self.map, self.head]
        dropdowns = [dropdown for column in self.columns for dropdown in (column.bias_mode, column.size)]
        controls = [self.layer, self.compare, self.output, *choices, *dropdowns]
        sliders = [self.opacity, self.score_thr]
        settings = {self.upload, self.query, self.attention_layer, *controls, *sliders}
        outputs = [self.query, *(column.box for column in self.columns), *shown]
        # All requests share one place in the queue: the model works for one at a time.
        options = dict(inputs=settings, outputs=outputs, concurrency_id='model', concurrency_limit=1)
        options.update(api_visibility='private')
        # Every change of the image counts; of other requests that come while one is answered, the last.
        self.upload.upload(self._new_image, trigger_mode='multiple', **options)
        self.upload.clear(self._new_image, trigger_mode='multiple', **options)
        options.update(trigger_mode='always_last')
        triggers = [*(control.input for control in controls), *(slider.release for slider in sliders)]
        gr.on(triggers, self._show, **options)
        # Another layer may have other maps and heads than the one that was chosen from.
        layer = self.attention_layer
        layer.input(self._other_layer, layer, choices, queue=False).then(self._show, **options)
        pictures = [p for column in self.columns for p in (column.prediction, column.attention, column.field)]
        gr.on([picture.select for picture in pictures], self._click, **options)

    def _choices(self, layer: str) -> tuple[dict, dict]:
        """Choices and values of the two dropdowns for the maps and the heads of a layer."""
        about = self.explorer.layers[layer]
        names = [f'{head}, gate {about.gates[head]:.2f}' if about.gates else str(head) for head in range(about.heads)]
        heads = [('mean of all', MEAN), *((name, head) for head, name in enumerate(names))]
        return dict(choices=about.maps, value=about.maps[0]), dict(choices=heads, value=MEAN)

    def _other_layer(self, layer: str) -> list[gr.Dropdown]:
        return [gr.Dropdown(**choices) for choices in self._choices(layer)]

    def _new_image(self, values: dict) -> dict:
        """Predict for another image, or for none."""
        return self._show({**values, self.query: None})

    def _click(self, values: dict, event: gr.SelectData) -> dict:
        """Look from the pixel that was clicked on."""
        column, row = event.index
        return self._show(values, (row, column))

    def _show(self, values: dict, clicked: tuple[int, int] | None = None) -> dict:
        """Everything that the controls ask for, by component.

        It is one answer: of several that follow each other quickly, Gradio's page loses some. An image that cannot be
        read, or that the model cannot take, becomes a message on the page.

        Args:
            values: Values of the controls.
            clicked: Row and column in a picture: the new query.
        """
        path, columns = values[self.upload], self.columns[: 1 + values[self.compare]]
        result = {column.box: gr.Column(visible=column in columns) for column in self.columns}
        result.update({component: None for column in self.columns for component in column.shown})
        nothing = {**result, self.query: None}
        if path is None:
            return nothing
        try:
            if clicked:
                size = self.explorer.read(path).shape[:2]
                values = {**values, self.query: file_pixel(clicked, fitted_size(size), size)}
            result[self.query] = values[self.query]
            for column in columns:
                result.update(self._show_prediction(column, values))
                if values[self.query]:
                    result.update(self._show_attention(column, values))
                    result.update(self._show_field(column, values))
            return result
        except (InputError, MemoryError, RuntimeError) as error:
            if isinstance(error, InputError):
                message = str(error).replace(path, Path(path).name)
            elif isinstance(error, MemoryError) or is_out_of_memory(error):
                message = 'not enough memory: choose a smaller input'
            else:
                raise
            gr.Warning(html.escape(message))
            return nothing

    def _show_prediction(self, column: Column, values: dict) -> dict:
        predictor = self.explorer.predictor
        prediction, picture = self._look(column, values)
        if values[self.layer]:
            picture = draw_prediction(
                picture, prediction.sample, predictor, values[self.opacity], values[self.score_thr]
            )
        if values[self.query]:
            picture = mark_pixel(picture, values[self.query], prediction.prepared.original_size)
        height, width = prediction.prepared.inputs.shape[2:]
        timing = f'{prediction.seconds:.2f} s for an input of {height} x {width} pixels'
        legend = legend_of(prediction.sample, predictor, values[self.score_thr])
        return {column.prediction: picture, column.about_prediction: legend + timing}

    def _show_attention(self, column: Column, values: dict) -> dict:
        prediction, picture = self._look(column, values)
        layer = values[self.attention_layer]
        attention = self.explorer.attention(values[self.upload], _view(column, values), layer, values[self.query])
        # Between the choice of a layer and that of one of its maps, the map may be another layer's.
        panels = attention.parts.get(values[self.map], attention.parts[ATTENTION])
        size = prediction.prepared.pixels.shape[:2]
        heat = weight_per_pixel(panels, None if values[self.head] == MEAN else values[self.head], size)
        # Those of VARS may be negative.
        smallest, largest = min(0.0, heat.min()), heat.max()
        picture = draw_heat(picture, (heat - smallest) / ((largest - smallest) or 1))
        if panels[0].is_of_query:
            (row, place), stride = attention.token, attention.stride
            picture = mark(picture, (place * stride, row * stride, (place + 1) * stride, (row + 1) * stride), size)
        grid = 'token {}, {} of {} x {}'.format(*attention.token, *attention.grid)
        bar = color_bar(f'{smallest:.2g}', f'{largest:.2g} a pixel')
        return {column.attention: picture, column.about_attention: f'{html.escape(layer)}, {grid}<br>{bar}'}

    def _show_field(self, column: Column, values: dict) -> dict:
        prediction, picture = self._look(column, values)
        fields = self.explorer.fields(values[self.upload], _view(column, values), values[self.query])
        height, width = size = prediction.prepared.pixels.shape[:2]
        field = fields[values[self.output]][:height, :width]
        if not field.any():
            about = 'No field: the mean over the channels of this output is constant (untrained LayerNorm).'
            return {column.field: picture, column.about_field: about}
        row, place = prediction.prepared.input_pixel(values[self.query])
        half, most = (f'{100 * area:.2g} %' for area in area_fractions(field, (0.5, 0.99)))
        return {
            column.field: mark_pixel(draw_heat(picture, field_heat(field)), (row, place), size),
            column.about_field: f'50 % of it in {half} of the area, 99 % in {most}<br>'
            + color_bar(f'{DARKEST:g} or less', 'largest = 1'),
        }

    def _look(self, column: Column, values: dict) -> tuple[Prediction, np.ndarray]:
        """The prediction of a view, and the image as it is shown."""
        prediction = self.explorer.predict(values[self.upload], _view(column, values))
        return prediction, fit(self.explorer.read(values[self.upload])[..., ::-1])


def _view(column: Column, values: dict) -> View:
    return View(values[column.bias_mode] or None, values[column.size])
