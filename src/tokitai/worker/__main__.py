"""The worker process: ``python .../worker/__main__.py DESCRIPTOR HOST``, started by the host and by nobody else.

It runs as a file, not as a module, because `import tokitai` takes ten times as long as the rest of its start. The
package is put in place without being run, and run when somebody asks for more of it than this folder and `errors`.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

LIGHT = ("tokitai.worker", "tokitai.errors", "tokitai.formats", "tokitai.judging")  # they need nothing of the package


class Later:
    """Runs the package when it is needed: as an import hook for its modules, and for the names in it."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package
        package.__dict__["__getattr__"] = self.name
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Run the package before any of its modules that are not light; find nothing."""
        if name.startswith("tokitai.") and not any(name == n or name.startswith(f"{n}.") for n in LIGHT):
            self.run()
        return None

    def name(self, name: str) -> Any:
        """A name of the package, which is run for it."""
        if name.startswith("__") or self not in sys.meta_path:
            raise AttributeError(f"module {self.package.__name__!r} has no attribute {name!r}")
        self.run()
        return getattr(self.package, name)

    def run(self) -> None:
        """Run the package, once."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            del self.package.__dict__["__getattr__"]
            assert self.package.__spec__ is not None and self.package.__spec__.loader is not None
            self.package.__spec__.loader.exec_module(self.package)


def main() -> None:
    """Serve on the socket whose descriptor is given, for the process whose number is given."""
    if "tokitai" not in sys.modules:
        root = __file__.rsplit("/", 2)[0]
        spec = spec_from_file_location("tokitai", f"{root}/__init__.py", submodule_search_locations=[root])
        assert spec is not None
        sys.modules["tokitai"] = package = module_from_spec(spec)
        Later(package)
    from tokitai.worker.child import serve

    if len(sys.argv) != 3 or not all(word.isdecimal() for word in sys.argv[1:]):
        sys.exit(f"{' '.join(sys.argv)}: accepted: the descriptor of a socket and the host's process number")
    serve(int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
