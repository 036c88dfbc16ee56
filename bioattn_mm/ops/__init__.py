"""Functions that touch every pair: (query, key) and (row offset, column offset)."""

from .aggregated_attention import aggregated_attention
from .log_cpb import log_cpb_table
from .sliding_window import sliding_window_av, sliding_window_qk

__all__ = ['aggregated_attention', 'log_cpb_table', 'sliding_window_av', 'sliding_window_qk']
