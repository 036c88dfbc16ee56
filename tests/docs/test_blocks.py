"""Blocks and commands are found as a reader sees them."""

import re
import subprocess

import pytest

from .blocks import ROOT, Command, inline_code, read_blocks

PAGE = r"""
# Title

```bash
python tools/train.py CONFIG --data 'my data' \
    --epochs 30   # to the end
NNODES=2 tools/dist_train.sh CONFIG 8 && bioattn --help
```

## Use of `x` {#use}

    === "Tab"

    ```python title="a.py"
    if True:
        print('# no heading')
    ```

```text
no code
```

````bash
# not a heading
make demo
````
"""


def test_blocks() -> None:
    first, tab, second = read_blocks('page.md', PAGE)
    assert [(block.name, block.language) for block in (first, tab, second)] == [
        ('Title', 'bash'),
        ('Use of x', 'python'),
        ('Use of x, 2', 'bash'),
    ]
    assert tab.text == "if True:\n    print('# no heading')\n"
    train = ['python', 'tools/train.py', 'CONFIG', '--data', 'my data', '--epochs', '30']
    dist = Command(['tools/dist_train.sh', 'CONFIG', '8'], {'NNODES': '2'})
    assert first.commands() == [Command(train), dist, Command(['bioattn', '--help'])]
    assert second.lines() == ['make demo']


@pytest.mark.parametrize(
    ('text', 'message'), [('```sh\nmake\n```\n', "a block of 'sh'"), ('```bash\nmake\n', 'does not end')]
)
def test_slips(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f'^page.md:1: .*{message}'):
        read_blocks('page.md', text)


def test_inline_code() -> None:
    assert inline_code('page.md', 'With `--a` and\n`python tools/x.py\n--b`.\n\n```bash\nmake `x`\n```\n') == [
        '--a',
        'python tools/x.py --b',
    ]


def test_ci_finds_the_commands_of_install() -> None:
    (line,) = re.findall(r'^install=.*$', (ROOT / '.ci/run').read_text(), re.M)
    done = subprocess.run(
        ['bash', '-c', line + '; echo "$install"'], cwd=ROOT, capture_output=True, text=True, check=True
    )
    install = next(block for block in read_blocks('README.md') if block.name == 'Install')
    assert done.stdout == install.text
    assert install.lines()[0].startswith('make setup')
