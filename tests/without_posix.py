"""Makes this package behave as on Windows. Import this module first, or name it in a `.pth` file.

For this package, modules and functions that Python has only on POSIX systems are missing; the
standard library and other packages keep them. Paths and processes remain those of this system.
"""

import builtins
import types
from typing import Any

MISSING_MODULES = {"fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "readline"}
MISSING_NAMES = {
    "os": """fork getuid geteuid getgid getegid setsid posix_spawn POSIX_SPAWN_OPEN pread pwrite
        fchmod O_NOFOLLOW O_NONBLOCK O_DIRECTORY O_CLOEXEC killpg register_at_fork statvfs chown
        fchown mkfifo wait waitid WNOHANG getpgid setpgid sync fchdir""".split(),
    "signal": "SIGALRM SIGKILL SIGHUP SIGUSR1 SIGCHLD SIGPIPE setitimer ITIMER_REAL".split(),
    "socket": "AF_UNIX SO_PEERCRED MSG_DONTWAIT".split(),
    "_socket": ["AF_UNIX"],
    "sys": [],
    "time": ["tzset"],
}
OTHER_VALUES: dict[str, dict[str, Any]] = {
    "os": {"name": "nt", "O_BINARY": 0},
    "sys": {"platform": "win32"},
}


class Module:
    """A module as this package would see it on Windows."""

    def __init__(self, real: types.ModuleType) -> None:
        object.__setattr__(self, "real", real)

    def __getattr__(self, name: str) -> Any:
        real = object.__getattribute__(self, "real")
        others = OTHER_VALUES.get(real.__name__, {})
        if name in others:
            return others[name]
        if name in MISSING_NAMES[real.__name__]:
            raise AttributeError(f"{real.__name__} has no {name} on Windows")
        return getattr(real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "real"), name, value)


_import = builtins.__import__
_modules: dict[str, Module] = {}


def _import_as_on_windows(name: str, namespace: Any = None, *more: Any, **named: Any) -> Any:
    """Import a module unless Windows lacks it."""
    importer = str((namespace or {}).get("__name__", ""))
    if not importer.startswith("memories"):
        return _import(name, namespace, *more, **named)
    if name in MISSING_MODULES:
        raise ImportError(f"no module {name} on Windows")
    module = _import(name, namespace, *more, **named)
    if name not in MISSING_NAMES:
        return module
    return _modules.setdefault(name, Module(module))


builtins.__import__ = _import_as_on_windows
