"""The exception for wrong input by the user, and text of others in a line."""

import re

# What a line of text cannot hold: control characters, line breaks, and the parts of file names that are not in UTF-8.
_UNPRINTABLE = re.compile('[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')


class InputError(ValueError):
    """A file, config, checkpoint or argument that cannot be used.

    The message is one line that says what was got, what was expected and what to do. The tools print it
    without a traceback and exit with code 2. File names in it may have any characters (see `printable`).
    """

    def __init__(self, message: str = '') -> None:
        # PyTorch raises an error of a data loader's worker again, with the worker's traceback as its message, whose
        # last line is "module.ErrorClass: message".
        if message.startswith('Caught ') and '\nOriginal Traceback' in message:
            message = re.sub(r'^([\w.]+\.)?\w*Error: ', '', message.strip().split('\n')[-1])
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Text as one line that any stream takes: what cannot be in it is escaped as in Python's strings."""
    return _UNPRINTABLE.sub(lambda match: match.group().encode('unicode_escape').decode(), text)


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or its class if it says nothing."""
    return (text_of(error).strip() or type(error).__name__).splitlines()[0]


def text_of(error: BaseException) -> str:
    """What an exception says; a KeyError puts it in quotes."""
    return str(error.args[0] if isinstance(error, KeyError) and error.args else error)
