"""Generate the first block of a day's README: how its .cu files get into Python."""

from __future__ import annotations

import re
import textwrap

from common.base.days import Day

WIDTH = 110
# The outputs of a rung with several, named by the comment: using Both = std::tuple<…>;  // y, scale
_NAMED = re.compile(r"^using (\w+) = std::tuple<([\w, ]+)>; +// (\w+(?:, \w+)+)$", re.MULTILINE)
_BOUND = re.compile(r"^(?:HOST_)?RUNG\(\s*\w+,\s*(\w+)|\bm\.def\(\s*\"(\w+)\(", re.MULTILINE)


def python_block(day: Day) -> str:
    """Return the call that builds the day, and a call of its first rung; or, for a day whose SOURCE
    binds nothing, only the command that builds it."""
    command = f"# python days/{day.name}/day.py"
    sources = ", ".join(f'"{source.name}"' for source in day.library_sources)
    load = f'torch.utils.cpp_extension.load("{day.name}", [{sources}], is_python_module=False)'
    if call := first_call(day):
        lines = [f"{command} does this, with the flags of common/build/library.py:", load, call]
    else:
        lines = [f"{command} builds the day in the ways that it teaches, and calls each rung"]
    shown = [textwrap.fill(line, WIDTH, subsequent_indent="    ") for line in lines]
    return "\n".join(["```python", *shown, "```"])


def first_call(day: Day) -> str:
    """Return a call of the first rung that the day's SOURCE binds, "" if it binds none."""
    text = day.source.read_text(encoding="utf-8")
    names = ["".join(found) for found in _BOUND.findall(text)]
    if not names:
        return ""
    name = next((name for name in names if re.search(r"_v\d", name)), names[0])
    launcher = re.search(rf"^([\w:<>, ]+) {name}\(([^()]*)\) {{", text, re.MULTILINE)
    if launcher is None:
        return f"y = torch.ops.{day.name}.{name}(...)"
    returned, parameters = launcher.groups()
    result = "" if returned == "void" else f"{_outputs(text).get(returned, 'y')} = "
    return f"{result}torch.ops.{day.name}.{name}({', '.join(_names(parameters))})"


def _outputs(text: str) -> dict[str, str]:
    """Return the names of the outputs, "y, scale", by the name of each tuple that has them."""
    found = _NAMED.findall(text)
    return {one: names for one, types, names in found if types.count(",") == names.count(",")}


def _names(parameters: str) -> list[str]:
    """Return the names of a launcher's parameters; "..." for a macro."""
    words = [re.findall(r"\w+", each) for each in re.sub(r"<[^<>]*>", "", parameters).split(",")]
    return [each[-1] if len(each) > 1 else "..." for each in words if each]
