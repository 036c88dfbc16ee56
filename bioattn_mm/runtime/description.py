"""Reading `pipeline.json`, which lies beside an exported model and says how images go in and what comes out.

`bioattn_mm.export.pipeline` documents it key by key.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..files import check_entries, read_json

FILE, FORMAT = 'pipeline.json', 'bioattn_mm/1'
KINDS = dict(task=str, preprocessing=list, postprocessing=dict, classes=list, palette=list)


@dataclass(frozen=True)
class Description:
    """What `pipeline.json` says of a model.

    Attributes:
        task: 'segmentation', 'detection' or 'classification'; other models are not run here.
        preprocessing: The steps from an image to the model's input.
        postprocessing: What is done with its outputs.
        classes: Names of the classes in the order of their indices.
        palette: R, G and B of each class.
        minimum: The smallest height and width of the model's input, in pixels.
        multiple: What they must be multiples of.
    """

    task: str
    preprocessing: list[dict]
    postprocessing: dict
    classes: tuple[str, ...]
    palette: list[tuple[int, int, int]]
    minimum: int
    multiple: int


def read_description(model: str | Path) -> Description:
    """Read the `pipeline.json` beside the file of a model.

    Raises:
        InputError: The model or the file is missing, or the file is of another format.
    """
    path = Path(model).with_name(FILE)
    if not Path(model).is_file():
        raise InputError(f'exported model not found: {model}')
    if not path.is_file():
        raise InputError(f'{path} not found: it is exported with the model and says how to run it; copy both')
    again = 'export the model again'
    document = read_json(path, again)
    found = document.get('format')
    if found != FORMAT:
        raise InputError(
            f'{path} has the format {found}, expected {FORMAT}: export the model again, or name its config before it'
        )
    check_entries(path, document, again, **KINDS)
    inputs = document.get('inputs') or [{}]
    image = inputs[0] if isinstance(inputs, list) else None
    check_entries(path, dict(inputs=image), again, inputs=dict)
    parts = (
        (document['preprocessing'], lambda step: isinstance(step, dict) and isinstance(step.get('type'), str)),
        (document['classes'], lambda name: isinstance(name, str)),
        (document['palette'], _is_colour),
        ([image.get('minimum', 1), image.get('multiple', 1)], lambda number: type(number) is int and number > 0),
        ([document['postprocessing'].get(key, (1, 1)) for key in ('crop_size', 'stride')], _is_size),
    )
    wrong = [entry for entries, is_right in parts for entry in entries if not is_right(entry)]
    if wrong:
        raise InputError(f'{path} is damaged, it has the entry {json.dumps(wrong[0])[:60]}: {again}')
    if len(document['classes']) != len(document['palette']):
        raise InputError(
            f'{path} is damaged, it has {len(document["classes"])} classes and {len(document["palette"])} colours: '
            f'{again}'
        )
    return Description(
        task=document['task'],
        preprocessing=document['preprocessing'],
        postprocessing=document['postprocessing'],
        classes=tuple(document['classes']),
        palette=[tuple(color) for color in document['palette']],
        minimum=image.get('minimum', 1),
        multiple=image.get('multiple', 1),
    )


def _is_colour(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 3 and all(type(v) is int and 0 <= v <= 255 for v in entry)


def _is_size(entry: object) -> bool:
    return isinstance(entry, (list, tuple)) and len(entry) == 2 and all(type(v) is int and v > 0 for v in entry)
