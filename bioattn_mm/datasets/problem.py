"""What is wrong with a dataset, as the tools list it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """Something that is wrong.

    Attributes:
        kind: A few words, the same for all problems of this kind.
        file: The image, label map or annotation file.
        detail: What was found, such as the id of an annotation.
    """

    kind: str
    file: str
    detail: str = ''

    def __str__(self) -> str:
        return f'{self.file}: {self.detail or self.kind}'
