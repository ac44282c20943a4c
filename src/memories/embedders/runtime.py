"""Opens a packaged model with onnxruntime, on one thread and without telemetry."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memories.errors import EmbedderError

_ADDRESS_SPACE = 192 * 2**20  # bytes; with less the model, numpy and their libraries don't fit


def open_model(file: Path, name: str) -> Any:
    """Return a session that runs a model.

    Args:
        file: The model as ONNX.
        name: What errors call it.

    Raises:
        EmbedderError: The runtime is not installed, or lacks memory.
    """
    # numpy's threads cost 8 ms where the work takes 0.2 ms
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # onnxruntime 1.29 reports to its maker unless this is set before import
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    onnxruntime = _import_runtime(name)
    onnxruntime.disable_telemetry_events()  # if it was imported before
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def find_altered(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Return the files of a model that are missing or have another SHA-256 than stated."""
    import hashlib

    def differs(file: Path, expected: str) -> bool:
        try:
            with file.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest() != expected
        except OSError:
            return True

    return [folder / name for name, expected in files.items() if differs(folder / name, expected)]


def windows(ids: list[int], length: int, step: int) -> Iterable[list[int]]:
    """Return windows of a length, one every `step` ids; a short text, even an empty one, has a
    single window.
    """
    return [ids[at : at + length] for at in range(0, max(1, len(ids) - length + step), step)]


def _import_runtime(name: str) -> Any:
    """Import the runtime of a model; where memory is limited its libraries would end the process or
    fail oddly.
    """
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    except ImportError:  # Windows
        limit = -1
    if 0 <= limit < _ADDRESS_SPACE:
        raise EmbedderError(
            f"{name} needs {_ADDRESS_SPACE // 2**20} MB of address space, and this process may have"
            f" {limit // 2**20}; raise the limit (ulimit -v) or set EMBEDDER=none"
        )
    try:
        import onnxruntime
    except (ImportError, MemoryError) as exc:
        why = str(exc) or "out of memory"
        raise EmbedderError(
            f"cannot load onnxruntime, which runs {name}: {why}; install memories again"
        ) from exc
    return onnxruntime
