"""The exception for wrong input by the user."""


class InputError(ValueError):
    """A file, config, checkpoint or argument that cannot be used.

    The message is one line that says what was got, what was expected and what to do. The tools print it
    without a traceback and exit with code 2.
    """
