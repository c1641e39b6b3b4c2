"""Inline the headers of a day's folder into its source, each where it is first included.

In such a text, a header's function can be changed, and omitted if unused, like one of the source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from common.base.compiling import sources_of
from common.base.paths import ROOT

_LINE = re.compile(
    r'^[ \t]*#[ \t]*(?:include[ \t]*"(?P<header>[^"\n]+)"|pragma[ \t]+once\b).*$', re.MULTILINE
)


def own_headers(source: Path) -> list[Path]:
    """Return the headers in a source's folder that it includes, directly or indirectly."""
    folder = source.parent.resolve()
    reached = [path for path in sources_of(source) if path.parent == folder]
    return [source.parent / path.name for path in reached if path != source.resolve()]


def inlined(source: Path, texts: Mapping[Path, str], numbered: bool = True) -> str:
    """Return the source with headers in it. numbered: `#line` gives each line's original position.

    texts: of the source, and of the headers to inline.
    """
    known = {path.resolve(): path for path in texts}
    seen: set[Path] = set()

    def text_of(path: Path) -> str:
        seen.add(path)

        def put(match: re.Match[str]) -> str:
            if match["header"] is None:
                return ""
            header = _found(match["header"], path)
            if header not in known:
                return match[0]
            own = known[header]
            if own in seen:
                return ""
            if not numbered:
                return text_of(own).strip("\n")
            line = match.string.count("\n", 0, match.start()) + 2
            return f'#line 1 "{own}"\n{text_of(own)}\n#line {line} "{path}"'

        return _LINE.sub(put, texts[path])

    return text_of(source)


def _found(name: str, includer: Path) -> Path | None:
    candidates = ((base / name).resolve() for base in (includer.parent, ROOT))
    return next((path for path in candidates if path.is_file()), None)
