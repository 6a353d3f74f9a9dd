"""Where a call runs: `HostExecutor` for arrays in host memory, `GpuExecutor` for those of a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from ..arrays.adapter import Array, Arrays
from ..lang import Operator
from .kernel import KernelBase
from .launch_cache import CallSignature
from .problem import Problem

K = TypeVar("K", bound=KernelBase)


class Executor(ABC, Generic[K]):
    """One call's arrays, and what launches kernels on them."""

    arrays: Arrays

    @abstractmethod
    def kernel(
        self, operator: Operator, dtype: str, present: frozenset[str], options: tuple[tuple[str, object], ...]
    ) -> K:
        """The kernel for an operator, a storage format, the tensors that are given, and options."""

    @abstractmethod
    def begin(self, operator: Operator, given: Mapping[str, Any]) -> None:
        """Before anything is copied or launched. Raises ArgumentError where nothing may be."""

    @abstractmethod
    def prepare_lists(
        self, operator: Operator, given: Mapping[str, Any], options: Mapping[str, object], copy: bool
    ) -> Callable[[Mapping[str, float]], Any]:
        """Lists of tensors, checked, to be called with host scalars. Raises ArgumentError."""

    @abstractmethod
    def check_values(
        self, problem: Problem, views: Mapping[str, Array], tensors: Mapping[str, Array],
        params: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Check the values of arrays that choose elements, or that must hold no NaN: ``views`` are the caller's,
        ``tensors`` are as kernels read them. Raises ArgumentError."""

    @abstractmethod
    def launch(
        self, kernel: K, problem: Problem, tensors: Mapping[str, Array], results: Mapping[str, Array],
        params: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Launch the kernel; on a GPU, put it into the call's stream."""

    @abstractmethod
    def record(
        self, signature: CallSignature, kernel: K, problem: Problem, tensors: Mapping[str, Array],
        results: Mapping[str, Array], supplied: Mapping[str, Any], copies: Mapping[str, tuple[int, ...] | None],
    ) -> None:  # fmt: skip
        """Let the launch cache know a call that was launched, where later calls can replay it. ``copies`` are the
        arguments that were copied, and the shapes to which they were broadcast."""
