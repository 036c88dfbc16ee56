"""The page itself, in Gradio: controls, and what they show. What is computed comes from `explorer`."""

import html
import tempfile
from contextlib import suppress
from pathlib import Path

import gradio as gr
import numpy as np

from ..analysis.attention import ATTENTION, weight_per_pixel
from ..analysis.figures import draw_heat
from ..analysis.receptive_field import area_fractions
from ..errors import InputError
from ..runtime.predictions import Detections
from ..training.runner import is_out_of_memory
from .explorer import Explorer
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
    with_names,
)

# Seconds: how often temporary files are looked through, and their age when they are removed.
CLEANING = (600, 3600)
MEAN = -1  # this choice is the mean of all heads
ERRORS = (InputError, MemoryError, RuntimeError)  # of an image that the model cannot take
HINT = 'Drop an image or choose an example. Point at the prediction to see classes; click a pixel to look from there.'
# Fonts of the user's own machine: Gradio's themes otherwise ask another server for theirs.
THEME = gr.themes.Default(
    font=['system-ui', 'sans-serif'], font_mono=['ui-monospace', 'monospace'], spacing_size='sm', text_size='sm'
)
CSS = """
.legend {display: flex; flex-wrap: wrap; gap: 2px 12px; max-height: 5em; overflow-y: auto}
.entry {white-space: nowrap}
.swatch {display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.35em; border: 1px solid #8888;
         vertical-align: -0.1em}
.bar {display: inline-block; width: 7em; height: 0.8em; vertical-align: -0.1em}
.scale {white-space: nowrap}
#prediction {height: 402px}
#prediction svg:has(polygon) {width: 100%; height: 376px}
#prediction polygon {fill: transparent; fill-rule: evenodd}
#prediction polygon:hover {fill: #fff6}
"""
# A click into the prediction as those into Gradio's pictures: the pixel of the picture.
CLICK = """element.addEventListener('click', event => {
    const picture = event.target.closest('image, polygon')?.closest('svg');
    if (!picture) return;
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());
    trigger('select', {index: [place.x, place.y], value: null});
})"""


class Page:
    """The page for one model.

    Args:
        explorer: The model.
        title: Heading, such as the names of config and checkpoint.

    Attributes:
        blocks: Gradio's app, which may read `example_paths`.
    """

    def __init__(self, explorer: Explorer, title: str) -> None:
        self.explorer, self.example_paths = explorer, [str(path) for path in explorer.examples()]
        is_detector = explorer.predictor.task == 'detection'
        layers, outputs = list(explorer.layers), explorer.outputs
        with gr.Blocks(title=title, analytics_enabled=False, delete_cache=CLEANING, fill_width=True) as self.blocks:
            gr.Markdown(f'### {title}\n{HINT}')
            self.query = gr.State()
            with gr.Row():
                with gr.Column(scale=2, min_width=240):
                    self.upload = gr.File(label='Image', file_types=['image'], height=130, elem_id='upload')
                    images = [[path] for path in self.example_paths]
                    self.examples = gr.Dataset(
                        label='Examples', components=['image'], samples=images, elem_id='examples'
                    )
                    self.opacity = gr.Slider(0, 1, 0.6, step=0.05, label='Opacity', elem_id='opacity')
                    self.score_thr = gr.Slider(
                        0, 1, 0.3, step=0.05, label='Lowest score', visible=is_detector, elem_id='score'
                    )
                    self.layer = gr.Dropdown(
                        layers, value=layers[len(layers) // 2], label='Attention layer', elem_id='layer'
                    )
                    self.map, self.head = self._parts_of(self.layer.value)
                    self.output = gr.Dropdown(
                        [(f'output {output} of the backbone', index) for index, output in enumerate(outputs)],
                        value=len(outputs) // 2,
                        label='Receptive field of',
                        elem_id='output',
                    )
                    self.files = gr.File(label='Download', visible=False, interactive=False, elem_id='files')
                self.pictures, self.texts = [], []
                image = dict(format='png', interactive=False, buttons=['download', 'fullscreen'], height=400)
                for kind, name, label, settings in (
                    (gr.HTML, 'prediction', 'Prediction', dict(show_label=True, container=True, js_on_load=CLICK)),
                    (gr.Image, 'attention', 'Attention of the pixel', image),
                    (gr.Image, 'field', 'Effective receptive field of the pixel', image),
                ):
                    with gr.Column(scale=3, min_width=320):
                        self.pictures.append(kind(label=label, elem_id=name, **settings))
                        self.texts.append(gr.HTML(elem_id=f'about_{name}'))
            self._connect()

    def _connect(self) -> None:
        """Say what happens when."""
        controls, sliders = [self.map, self.head, self.output], [self.opacity, self.score_thr]
        settings = {self.upload, self.query, self.layer, *controls, *sliders}
        outputs = [self.query, *self.pictures, *self.texts]
        # All requests share one place in the queue: the model works for one at a time.
        options = dict(inputs=settings, outputs=outputs, concurrency_id='model', concurrency_limit=1)
        options.update(api_visibility='private', show_progress_on=self.pictures)
        files = dict(options, fn=self._files, outputs=self.files, show_progress='hidden')
        # Every change of the image counts; of other requests that come while one is answered, the last.
        example = self.examples.click(lambda sample: sample[0], self.examples, self.upload, queue=False)
        for changed in (self.upload.upload, self.upload.clear, example.then):
            changed(self._new_image, trigger_mode='multiple', **options).then(**files)
        options.update(trigger_mode='always_last')
        triggers = [*(control.input for control in controls), self.opacity.release]
        gr.on(triggers, self._show, **options)
        self.score_thr.release(self._show, **options).then(**files)
        # Another layer may have other maps and heads than the one that was chosen from.
        other = self.layer.input(self._parts_of, self.layer, [self.map, self.head], queue=False)
        other.then(self._show, **options)
        gr.on([picture.select for picture in self.pictures], self._click, **options)

    def _parts_of(self, layer: str) -> tuple[gr.Dropdown, gr.Dropdown]:
        """The choice of a map and that of a head of a layer."""
        maps, heads = self.explorer.layers[layer]
        numbers = [('mean of all', MEAN), *((str(head), head) for head in range(heads))]
        part = gr.Dropdown(maps, value=maps[0], label='Part of the attention', elem_id='map')
        return part, gr.Dropdown(numbers, value=MEAN, label='Head', elem_id='head')

    def _new_image(self, values: dict) -> dict:
        """Predict for another image, or for none."""
        return self._show({**values, self.query: None})

    def _click(self, values: dict, event: gr.SelectData) -> dict:
        """Look from the pixel that was clicked on."""
        column, row = event.index
        return self._show(values, (row, column))

    def _show(self, values: dict, clicked: tuple[int, int] | None = None) -> dict:
        """Everything that the values of the controls ask for, by component; row and column of a click are the query.

        It is one answer: of several that follow each other quickly, Gradio's page loses some. An image that cannot be
        read, or that the model cannot take, becomes a message on the page.
        """
        path, query = values[self.upload], values[self.query]
        nothing = dict.fromkeys([self.query, *self.pictures, *self.texts])
        if path is None:
            return nothing
        try:
            if clicked:
                size = self.explorer.read(path).shape[:2]
                query = file_pixel(clicked, fitted_size(size), size)
            parts = [self._prediction(values, query)]
            if query:
                parts += [self._attention(values, query), self._field(values, query)]
        except ERRORS as error:
            if isinstance(error, InputError):
                message = str(error).replace(path, Path(path).name)
            elif isinstance(error, MemoryError) or is_out_of_memory(error):
                message = 'not enough memory: choose a smaller image'
            else:
                raise
            gr.Warning(html.escape(message))
            return nothing
        pictures, texts = zip(*parts)
        return {**nothing, self.query: query, **dict(zip(self.pictures, pictures)), **dict(zip(self.texts, texts))}

    def _files(self, values: dict) -> gr.File:
        """What `predict.py` writes for the image, if `_show` could show it."""
        files, folder = [], Path(tempfile.mkdtemp(dir=self.files.GRADIO_CACHE))
        if values[self.upload]:
            with suppress(*ERRORS):
                files = self.explorer.write(values[self.upload], values[self.score_thr], folder)
        return gr.File([str(file) for file in files], visible=bool(files))

    def _picture(self, values: dict) -> np.ndarray:
        """The image as it is shown."""
        return fit(self.explorer.read(values[self.upload])[..., ::-1])

    def _prediction(self, values: dict, query: tuple[int, int] | None) -> tuple[str, str]:
        predictor, prediction = self.explorer.predictor, self.explorer.predict(values[self.upload])
        result, size = prediction.result, prediction.image.shape[:2]
        if isinstance(result, Detections):
            result = result.keep(result.scores >= values[self.score_thr])
        picture = draw_prediction(self._picture(values), result, size, predictor, values[self.opacity])
        if query:
            picture = mark_pixel(picture, query, size)
        height, width = prediction.prepared.inputs.shape[2:]
        timing = f'{prediction.seconds:.2f} s for an input of {height} x {width} pixels'
        return with_names(picture, result, size, predictor.classes), legend_of(result, predictor) + timing

    def _attention(self, values: dict, query: tuple[int, int]) -> tuple[np.ndarray, str]:
        path, layer = values[self.upload], values[self.layer]
        attention = self.explorer.attention(path, layer, query)
        # Between the choice of a layer and that of one of its maps, the map may be another layer's.
        panels = attention.parts.get(values[self.map], attention.parts[ATTENTION])
        size = self.explorer.predict(path).prepared.pixels.shape[:2]
        heat = weight_per_pixel(panels, None if values[self.head] == MEAN else values[self.head], size)
        # Those of VARS may be negative.
        smallest, largest = min(0.0, heat.min()), heat.max()
        picture = draw_heat(self._picture(values), (heat - smallest) / ((largest - smallest) or 1))
        if panels[0].is_of_query:
            (row, place), stride = attention.token, attention.stride
            picture = mark(picture, (place * stride, row * stride, (place + 1) * stride, (row + 1) * stride), size)
        grid = 'token {}, {} of {} x {}'.format(*attention.token, *attention.grid)
        bar = color_bar(f'{smallest:.2g}', f'{largest:.2g} a pixel')
        return picture, f'{html.escape(layer)}, {grid}<br>{bar}'

    def _field(self, values: dict, query: tuple[int, int]) -> tuple[np.ndarray, str]:
        path = values[self.upload]
        prepared, fields = self.explorer.predict(path).prepared, self.explorer.fields(path, query)
        height, width = size = prepared.pixels.shape[:2]
        field, picture = fields[values[self.output]][:height, :width], self._picture(values)
        if not field.any():
            return picture, 'No field: the mean over the channels of this output is constant (untrained LayerNorm).'
        half, most = (f'{100 * area:.2g} %' for area in area_fractions(field, (0.5, 0.99)))
        bar = color_bar(f'{DARKEST:g} or less', 'largest = 1')
        picture = mark_pixel(draw_heat(picture, field_heat(field)), prepared.input_pixel(query), size)
        return picture, f'50 % of it in {half} of the area, 99 % in {most}<br>{bar}'
