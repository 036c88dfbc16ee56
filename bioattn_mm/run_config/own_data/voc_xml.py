"""XML files of Pascal VOC's format."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from ...datasets.problem import Problem
from .voc_layout import XML_FOLDERS

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')
MAX_BYTES = 2**24  # of an XML file
MAX_CORNER = 1e9  # in pixels
EXPATS = (b'utf-8', b'utf-16', b'iso-8859-1', b'us-ascii')  # encodings that expat reads; the others Python
LINE = 'line'  # attribute of the elements: where they stand


@dataclass(frozen=True)
class Box:
    """An object in an XML file: its class, its corners as they stand there, whether it is difficult, and its line."""

    name: str
    corners: tuple[float, float, float, float]
    is_difficult: bool
    line: int


@dataclass
class Annotated:
    """What an XML file says.

    Attributes:
        size: Width and height of the image, None without.
        file_name: The image's name.
        boxes: The objects; None for those that cannot be used.
        faults: What is wrong.
    """

    size: tuple[int, int] | None = None
    file_name: str = ''
    boxes: list[Box | None] = field(default_factory=list)
    faults: list[Problem] = field(default_factory=list)


def read_xml(path: Path) -> Annotated:
    """Read an XML file; what cannot be used in it is among the faults."""
    found = Annotated()

    def fault(kind: str, detail: str) -> None:
        found.faults.append(Problem(kind, str(path), detail))

    try:
        root = parse_xml(path.read_bytes())
    except ValueError as error:
        fault('XML malformed', str(error))
        return found
    if root.tag != 'annotation':
        fault('XML malformed', f'line {root.get(LINE)}: <{root.tag}>, expected <annotation>')
        return found
    found.file_name = _text(root, 'filename')
    size = [_number(root, f'size/{name}') for name in ('width', 'height')]
    if all(each >= 1 for each in size):  # programs write 0 for a size that they do not know
        found.size = int(size[0]), int(size[1])
    for each in root.findall('object'):
        name, corners = _text(each, 'name'), tuple(_number(each, f'bndbox/{corner}') for corner in CORNERS)
        wrong = [corner for corner, value in zip(CORNERS, corners) if not abs(value) < MAX_CORNER]
        found.boxes.append(None)
        if not name.isprintable() or not name:
            fault('object malformed', f'line {each.get(LINE)}: the name of an object is {name[:20]!r}')
        elif wrong:
            value = _text(each, f'bndbox/{wrong[0]}')
            what = f'{wrong[0]} is {value[:20]!r}, expected a number' if value else f'no {wrong[0]}'
            fault('box malformed', f'line {each.get(LINE)}: {name!r}: {what}')
        else:
            difficult = _text(each, 'difficult').lower() in ('1', 'true')
            found.boxes[-1] = Box(name, corners, difficult, int(each.get(LINE)))
    return found


def find_names(root: Path, number: int) -> set[str]:
    """The names of the objects in some of the XML files of a folder in VOC's format, evenly spread over all."""
    paths = [path for name in XML_FOLDERS for path in sorted((root / name).rglob('*.xml'))]
    chosen = paths[:: max(1, len(paths) // number)]
    return {box.name for path in chosen for box in read_xml(path).boxes if box is not None}


def _text(element: Element, path: str) -> str:
    return (element.findtext(path) or '').strip()


def _number(element: Element, path: str) -> float:
    """A number in an element; NaN without, or of another text."""
    try:
        return float(_text(element, path))
    except ValueError:
        return math.nan


def parse_xml(content: bytes) -> Element:
    """The elements of an XML file, each with the line where it begins as its attribute `LINE`.

    A document type is refused: its entities can refer to each other until they fill the memory, and to other files.

    Raises:
        ValueError: It has one, is too large, or is no XML.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f'{len(content)} bytes, expected {MAX_BYTES} at most')
    encoding = re.match(rb'<\?xml[^>]*encoding=["\']([A-Za-z0-9._-]+)["\']', content)
    if encoding and encoding[1].lower() not in EXPATS:
        try:
            name = encoding[1].decode().lower()
            # Programs name GB2312 and write what has come to it since. Text is parsed whatever its declaration says.
            content = content.decode('gb18030' if name in ('gb2312', 'gbk') else name)
        except (LookupError, UnicodeDecodeError) as error:
            raise ValueError(f'line 1: {error}') from error
    parser, builder = expat.ParserCreate(), TreeBuilder()

    def refuse(*_: object) -> None:
        raise ValueError(f'line {parser.CurrentLineNumber}: a document type (DOCTYPE), which is not read')

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda tag, _: builder.start(tag, {LINE: str(parser.CurrentLineNumber)})
    parser.EndElementHandler, parser.CharacterDataHandler = builder.end, builder.data
    parser.buffer_text = True
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise ValueError(f'line {error.lineno}: {expat.ErrorString(error.code)}') from error
    return builder.close()
