"""The script of `python -m bioattn_mm SCRIPT`, as the main module.

A process that multiprocessing spawns runs the main module again. It finds this one by its name, and so imports this
package before the script, as the process that spawned it did.
"""

import os
import sys
from pathlib import Path

# Set by `bioattn_mm.__main__`; spawned processes inherit it.
__file__, __doc__ = os.environ['BIOATTN_MM_SCRIPT'], None
sys.argv[0] = __file__
exec(compile(Path(__file__).read_bytes(), __file__, 'exec'))
