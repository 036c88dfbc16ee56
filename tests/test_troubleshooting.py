"""docs/troubleshooting.md: the messages that it explains are messages of the code."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / 'docs/troubleshooting.md').read_text()
# Other libraries say these.
OF_OTHERS = (
    'Invalid host header',
    'libGL.so.1',
    'MMCV==',
    'mmsegmentation is',
    'no kernel image',
    'No module named',
    '... is not in the mmengine',
)
MESSAGES = [
    message
    for row in re.findall(r'^\| (.*?) \| ', PAGE, flags=re.MULTILINE)
    for message in re.findall(r'`([^`]+)`', row)
    if not message.startswith(OF_OTHERS)
]


@pytest.fixture(scope='module')
def texts() -> list[str]:
    """All strings of the code, with `\\0` for what is formatted into them."""
    found = []
    for file in (*ROOT.glob('bioattn_mm/**/*.py'), *ROOT.glob('tools/**/*.py'), ROOT / 'setup.py'):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(''.join(part.value if isinstance(part, ast.Constant) else '\0' for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


@pytest.mark.parametrize('message', MESSAGES)
def test_the_code_says_it(message: str, texts: list[str]) -> None:
    pattern = '.*'.join(re.escape(part) for part in re.split(r'\s*\.\.\.:?\s*', message))
    assert any(re.search(pattern, text, flags=re.DOTALL) for text in texts)
