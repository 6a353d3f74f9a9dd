"""Training on any number of ranks of `torch.distributed`, to the same bits.

`arrange` says which rank works through which blocks of the global batch, `Gradients` sums their gradients in the
balanced tree over blocks, and `checkpoint` saves a run that goes on with another number of ranks.
"""

from . import checkpoint
from .arrangement import Arrangement, arrange
from .gradients import Block, Gradients, TreeReduceScatter
from .start import start, stop

__all__ = ["Arrangement", "Block", "Gradients", "TreeReduceScatter", "arrange", "checkpoint", "start", "stop"]
