"""Metrics of a test."""

from ..errors import InputError


def choose_metric(metrics: dict[str, float], name: str | None = None) -> str:
    """Name of the metric that stands for a whole test.

    Args:
        metrics: What `Runner.test` returned.
        name: The one asked for; None for mIoU or the boxes' AP, whichever comes first.

    Raises:
        InputError: It is not there.
    """
    name = name or next((metric for metric in metrics if metric.endswith(('mIoU', 'bbox_mAP'))), None)
    if name not in metrics:
        raise InputError(f'no metric {name!r}: name one of {", ".join(metrics)} with --metric')
    return name
