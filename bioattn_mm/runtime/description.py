"""Reading `pipeline.json`, which lies beside an exported model and says how images go in and what comes out.

`bioattn_mm.export.pipeline` documents it key by key.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError

FILE, FORMAT = 'pipeline.json', 'bioattn_mm/1'
KEYS = ('task', 'preprocessing', 'postprocessing', 'classes', 'palette')


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
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f'{path} is no JSON: {error}') from error
    found = document.get('format') if isinstance(document, dict) else None
    if found != FORMAT:
        raise InputError(
            f'{path} has the format {found}, expected {FORMAT}: export the model again, or name its config before it'
        )
    absent = [key for key in KEYS if key not in document]
    if absent:
        raise InputError(f'{path} has no {", ".join(absent)}: export the model again')
    image = (document.get('inputs') or [{}])[0]
    return Description(
        task=document['task'],
        preprocessing=document['preprocessing'],
        postprocessing=document['postprocessing'],
        classes=tuple(document['classes']),
        palette=[tuple(color) for color in document['palette']],
        minimum=image.get('minimum', 1),
        multiple=image.get('multiple', 1),
    )
