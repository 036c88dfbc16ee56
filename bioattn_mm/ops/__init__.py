"""Functions that touch every (query, key) pair."""

from .aggregated_attention import aggregated_attention

__all__ = ['aggregated_attention']
