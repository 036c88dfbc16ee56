"""Main module of `python -m bioattn_mm SCRIPT`; it executes the script.

A process that multiprocessing spawns imports the main module of its parent by name. This one belongs to the package,
which is therefore imported before the script there, too.
"""

import os
import sys
from pathlib import Path

# Set by `bioattn_mm.__main__`; spawned processes inherit it.
__file__, __doc__ = os.environ['BIOATTN_MM_SCRIPT'], None
sys.argv[0] = __file__
exec(compile(Path(__file__).read_bytes(), __file__, 'exec'))
