"""Swap the modules of a model of PyTorch or Hugging Face for this package's, in place, and back.

A module stays the object that it is, with its parameters, buffers, hooks and place: its class becomes a subclass of its
own with another `forward`. So `state_dict`, tied weights and optimizers made before do not change, and `restore` gives
back the very same modules. Rules say which classes are swapped; what is not is in the report with its reason.
"""

from .report import Entry, Report
from .rule import Rule
from .swap import replace, restore

__all__ = ["Entry", "Report", "Rule", "replace", "restore"]
