"""Main module of `python -m bioattn_mm SCRIPT`, which spawned processes import, too, and the package with it."""

import os
import sys
from pathlib import Path

# Set by `bioattn_mm.__main__`; spawned processes inherit it.
__file__, __doc__ = os.environ['BIOATTN_MM_SCRIPT'], None
sys.argv[0] = __file__
exec(compile(Path(__file__).read_bytes(), __file__, 'exec'))
