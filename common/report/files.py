"""Writing result files: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


class ResultsError(Exception):
    """Results cannot be read, written or stored; the message says what and why."""


def write_atomically(path: Path, text: str) -> None:
    """Writes the file whole or leaves it as it was. What is no regular file (a device, a pipe) is
    written to, not replaced. Raises ResultsError, naming the file."""
    temporary = ""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, path.stat().st_mode if path.exists() else 0o644)
        os.replace(temporary, path)
    except OSError as error:
        state = "is unchanged" if path.exists() else "was not written"
        raise ResultsError(f"cannot write {path}, which {state}: {error.strerror}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            if temporary:
                os.unlink(temporary)
