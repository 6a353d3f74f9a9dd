"""NVIDIA's driver, called through `cuda.bindings`: every status code is checked and mapped to an exception.

The bindings are imported by the first call, never by importing this module.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from ...errors import DeviceError, DeviceLostError, DeviceMissingError, DeviceOutOfMemoryError, IllegalAddressError
from .nvrtc import HINT

# CUresult values after which no call in the same context works any more. A kernel causes the first group.
BY_KERNEL = frozenset({700, 710, 714, 715, 716, 717, 718, 719, 721})
LOST = frozenset({4, 214, 220, 226, 702, 709, 911})
OUT_OF_MEMORY = 2

_IN_VAIN = {
    3: "the driver is not initialised here (a process forked from one that used CUDA cannot use it: start a new one)",
    34: "the driver found is the stub library of the toolkit: install the NVIDIA driver",
    100: "the driver finds no CUDA device (or CUDA_VISIBLE_DEVICES hides it)",
    803: "the NVIDIA driver's kernel module and its library have different versions: restart the machine",
}


@lru_cache(maxsize=1)
def bindings() -> Any:
    """The module `cuda.bindings.driver`. Raises DeviceMissingError."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceMissingError(f"the Python package cuda-bindings is missing ({error}); {HINT}") from error
    return driver


def call(function: str, *arguments: Any, about: str = "") -> Any:
    """Call the driver and return what it returns besides its status: nothing, a value, or several.

    ``about`` says in the message what the call was for. Raises DeviceError or one of its subclasses.
    """
    try:
        result = getattr(bindings(), function)(*arguments)
    except RuntimeError as error:  # the library, or this function of it, is not there
        raise DeviceMissingError(f"{function}: {error}; install the NVIDIA driver") from error
    except KeyError as error:  # how the bindings answer a status that they do not know
        raise DeviceError(f"{about or function}: {function} returned an unknown status, {error}") from error
    status = result[0]
    if status != 0:
        fail(status, function, about)
    return result[1] if len(result) == 2 else result[1:]


def fail(status: Any, function: str, about: str = "") -> NoReturn:
    """Raise the error that a status other than 0 means, and say whether the process can go on."""
    code, driver = int(status), bindings()
    try:
        status = driver.CUresult(code)  # also where the status is a number
        text = driver.cuGetErrorString(status)[1]
    except Exception:  # a message is no reason to fail otherwise
        text = None
    said = f"{getattr(status, 'name', code)} ({code}): {text.decode() if text else 'no description'}"
    what = f"{about}: {function} returned {said}" if about else f"{function} returned {said}"
    if code == OUT_OF_MEMORY:
        raise DeviceOutOfMemoryError(f"{what}; the process can go on")
    if code in BY_KERNEL:
        raise IllegalAddressError(
            f"{what}; a kernel launched earlier in this process may be the cause; the device's context is lost, "
            f"and this process cannot use the device any more: start a new one"
        )
    if code in LOST:
        raise DeviceLostError(f"{what}; this process cannot use the device any more: start a new one")
    raise DeviceError(f"{what}; the process can go on")


def probe() -> str | None:
    """Why CUDA cannot be used in this process, and what to do about it; None where it can."""
    try:
        driver = bindings()
        (status,) = driver.cuInit(0)
    except DeviceMissingError as error:
        return str(error)
    except Exception as error:  # RuntimeError in most releases of the bindings
        said = str(error).strip().partition("\n")[0]
        return f"there is no NVIDIA driver here ({said}): install it"
    if status == 0:
        status, count = driver.cuDeviceGetCount()
        if status == 0 and count > 0:
            return None
        return _IN_VAIN[100]
    name = getattr(status, "name", "")
    return _IN_VAIN.get(int(status), f"the NVIDIA driver cannot be used: cuInit returned {name} ({int(status)})")


def in_use() -> bool:
    """Whether this process has used CUDA: then processes forked from it cannot."""
    try:
        return int(bindings().cuDeviceGetCount()[0]) == 0
    except (DeviceMissingError, RuntimeError):  # there is no driver that could have been used
        return False


def driver_version() -> str:
    """The driver's release where it is known, and the newest CUDA version that it runs: ``"580.65.06, CUDA 13.0"``."""
    number = int(call("cuDriverGetVersion"))
    cuda = f"CUDA {number // 1000}.{number % 1000 // 10}"
    for path, pattern in (("/sys/module/nvidia/version", r"\s*([\d.]+)"), ("/proc/driver/nvidia/version", _RELEASE)):
        try:
            found = re.search(pattern, Path(path).read_text())
        except OSError:
            continue
        if found:
            return f"{found[1]}, {cuda}"
    return cuda


_RELEASE = r"Kernel Module\D*?\s(\d+\.[\d.]+)"


def attribute(device: Any, name: str) -> int:
    """A property of a device by the end of its name: ``"MULTIPROCESSOR_COUNT"``."""
    key = getattr(bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call("cuDeviceGetAttribute", key, device))


def attribute_of_pointer(address: int, name: str, about: str) -> int:
    """A property of memory by the end of its name: ``"DEVICE_ORDINAL"``."""
    key = getattr(bindings().CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
    return int(call("cuPointerGetAttribute", key, address, about=about))
