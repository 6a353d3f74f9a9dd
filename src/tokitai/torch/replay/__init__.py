"""Recording what the steps of a run compute, and running them again, elsewhere, to compare."""

from .compare import Outcome, Replay, replay
from .difference import Difference
from .record import Record
from .replicas import unequal_replicas
from .run import Run

__all__ = ["Difference", "Outcome", "Record", "Replay", "Run", "replay", "unequal_replicas"]
