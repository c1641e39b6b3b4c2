"""Write result files completely or not at all, and read stored ones strictly."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.base.day_files import DayError, text_of
from common.base.decoding import PlainError, decode, parse
from common.base.refusal import CommandError

LEAST = 1 << 20  # free bytes for a file of results: a run of all days writes as many


class ResultsError(CommandError):
    """Results cannot be read, written or stored; the message contains the reason."""


def check_writable(path: Path, room: int = LEAST) -> None:
    """Raise ResultsError, naming the file, if `write_atomically` could not write it; call this
    before the work that produces its content. room: bytes that must be free on the disk."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.is_file() or not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(path.parent).free < room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with tempfile.NamedTemporaryFile(dir=path.parent) as file:
                file.write(bytes(LEAST))
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}") from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write the file completely or leave it unchanged. A device or a pipe is written to, not
    replaced. Raise ResultsError, naming the file.

    In a text, a lone surrogate, which stands for a byte of a path that is not UTF-8, becomes "?".
    """
    written = content.encode("utf-8", "replace") if isinstance(content, str) else content
    temporary = ""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(written)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
        with open(handle, "wb") as file:
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, path.stat().st_mode if path.exists() else 0o644)
        os.replace(temporary, path)
    except OSError as error:
        state = "is unchanged" if os.path.exists(path) else "was not written"
        raise ResultsError(f"cannot write {path}, which {state}: {error.strerror}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            if temporary:
                os.unlink(temporary)


def line_by_line(head: Mapping[str, object], lists: Mapping[str, Sequence[object]]) -> str:
    """Return a JSON object: a line for each value of `head`, and for each item of the lists."""

    def dump(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    lines = [f"{dump(name)}: {dump(value)}" for name, value in head.items()]
    for name, items in lists.items():
        lines.append(f"{dump(name)}: [\n" + ",\n".join(map(dump, items)) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_record(path: Path, kind: type, expected: int, what: str) -> Any:
    """Return the dataclass in a file, which has this format's number. what: its content, for the
    message. Raise ResultsError, naming the file, if it is invalid."""
    try:
        data: dict[str, Any] = decode(dict[str, Any], parse(text_of(path)), "the file")
        if (found := data.pop("format", None)) != expected:
            raise PlainError(f"format {found!r}, not {expected}")
        return decode(kind, data)
    except (DayError, PlainError) as error:
        raise ResultsError(f"{path} holds no {what}: {error}") from None
