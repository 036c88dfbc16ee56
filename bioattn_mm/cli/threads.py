"""How the threads of the tools wait for each other: asleep, so that other processes can use their cores.

By default OpenMP's threads spin between two parallel loops. Where processes share cores, each then keeps the others
from computing, and all become several times slower. OpenMP reads the variable once, when PyTorch is loaded: this
module is imported before. A value that the user has set stays.
"""

import os

os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
