"""AMD devices, as `hip-python` finds them. Kernels do not run on them yet: this says what is there, what is missing."""

from __future__ import annotations

import importlib
from typing import Any

HINT = "install it with `pip install 'tokitai[hip]'`"


def probe() -> str:
    """Why no kernel can be run on an AMD device here, in one line."""
    try:
        hip: Any = importlib.import_module("hip.hip")
    except Exception as error:  # a library of ROCm that is missing raises whatever its loader raises
        said = str(error).strip().partition("\n")[0]
        return (
            f"the Python package hip-python, or ROCm's libraries under it, cannot be loaded ({said}); {HINT}, "
            "and with it ROCm's runtime and the amdgpu driver"
        )
    try:
        status, count = hip.hipGetDeviceCount()
    except Exception as error:
        return f"hipGetDeviceCount failed ({error}); install ROCm's runtime and the amdgpu driver"
    if int(status) != 0 or count < 1:
        return f"no AMD device here (hipGetDeviceCount: {getattr(status, 'name', status)}, {count} devices)"
    return f"{count} AMD device{'s' * (count > 1)} here, but running kernels on one is not built yet"
