"""Decode plain data, as from JSON, into dataclasses and check it completely.

A report may come from another machine, so it is checked completely before it is used.
"""

from __future__ import annotations

import json
import math
import types
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LONGEST = 1 << 20  # characters of one text
LARGEST = 2**63  # limit of an integer


class PlainError(ValueError):
    """Data of another type than declared; the message names the field, its value and the type."""


def parse(text: str) -> Any:
    """Return the data of a JSON text.

    Raise PlainError for text that is not JSON, for NaN and infinities, which JSON excludes, and for
    data nested too deeply for Python's stack.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise PlainError(str(error)) from None
    except RecursionError:
        raise PlainError("lists and objects are nested too deeply") from None


def _no_constant(name: str) -> Any:
    raise PlainError(f"{name} is not a number of JSON")


def decode(kind: Any, data: Any, place: str = "") -> Any:
    """Return `data` as a `kind`: a dataclass, or a type made of list, dict, tuple, |, Literal, Any,
    str, int, float, bool and None.

    place: the name of `data` in messages, e.g. "days[3].rungs[0]". Raise PlainError, naming the
    field, for a wrong type, an unknown or missing field, a number that is not finite, an integer
    beyond 64 bits, and a text of more than LONGEST characters.
    """
    if is_dataclass(kind) and isinstance(kind, type):
        return _decode_fields(kind, data, place)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, data, place)
    if origin is Literal:
        if data not in arguments or isinstance(data, bool):
            raise _wrong(" or ".join(map(repr, arguments)), data, place)
        return data
    if origin is list:
        _require(isinstance(data, list), "a list", data, place)
        return [decode(arguments[0], item, f"{place}[{i}]") for i, item in enumerate(data)]
    if origin is tuple:
        _require(isinstance(data, list), "a list", data, place)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            arguments = (arguments[0],) * len(data)
        _require(len(data) == len(arguments), f"{len(arguments)} items", data, place)
        pairs = enumerate(zip(arguments, data, strict=True))
        return tuple(decode(each, item, f"{place}[{i}]") for i, (each, item) in pairs)
    if origin is dict:
        _require(isinstance(data, dict), "an object", data, place)
        return {
            decode(str, key, f"a key of {place}"): decode(arguments[1], value, f"{place}.{key}")
            for key, value in data.items()
        }
    return _decode_scalar(kind, data, place)


def _decode_scalar(kind: Any, data: Any, place: str) -> Any:
    if kind is Any:
        return _decode_any(data, place)
    if kind in (None, types.NoneType):
        _require(data is None, "null", data, place)
    elif kind is bool:
        _require(isinstance(data, bool), "true or false", data, place)
    elif kind is str:
        _require(isinstance(data, str), "a text", data, place)
        _require(len(data) <= LONGEST, f"at most {LONGEST} characters", len(data), place)
        whole_text = data.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in data)
        _require(whole_text, "a text without lone surrogates", data, place)
    elif kind is int:
        whole = isinstance(data, int) and not isinstance(data, bool)
        _require(whole and abs(data) < LARGEST, "a whole number of 64 bits", data, place)
    elif kind is float:
        number = isinstance(data, int | float) and not isinstance(data, bool)
        # math.isfinite may raise for an integer beyond 64 bits.
        finite = number and abs(data) < LARGEST and math.isfinite(data)
        _require(finite, "a finite number", data, place)
        return float(data)
    else:
        raise TypeError(f"{place}: {kind} is not a type of plain data")
    return data


def _decode_any(data: Any, place: str) -> Any:
    try:
        return _decode_item(data, place)
    except RecursionError:
        raise PlainError(f"{place}: nested too deeply") from None


def _decode_item(data: Any, place: str) -> Any:
    for kind in (list[Any], dict[str, Any]):
        if isinstance(data, get_origin(kind) or object):
            return decode(kind, data, place)
    for scalar in (bool, str, int, float):
        if isinstance(data, scalar):
            return decode(scalar, data, place)
    return decode(None, data, place)


def _decode_union(kinds: tuple[Any, ...], data: Any, place: str) -> Any:
    failures = []
    for kind in kinds:
        try:
            return decode(kind, data, place)
        except PlainError as error:
            failures.append(error)
    named = [kind for kind in kinds if kind is not types.NoneType]
    if data is not None and len(named) == 1:
        raise next(e for kind, e in zip(kinds, failures, strict=True) if kind is named[0])
    raise _wrong(" or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds), data, place)


def _decode_fields(kind: type, data: Any, place: str) -> Any:
    _require(isinstance(data, dict), "an object", data, place)
    types_of = _hints(kind)
    prefix = f"{place}." if place else ""
    declared = {field.name: field for field in fields(kind)}
    if unknown := sorted(map(str, data.keys() - declared)):
        raise PlainError(f"{prefix}{unknown[0]}: unknown, expected {', '.join(declared)}")
    for name, field in declared.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and name not in data:
            raise PlainError(f"{prefix}{name}: missing")
    return kind(
        **{name: decode(types_of[name], value, f"{prefix}{name}") for name, value in data.items()}
    )


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _require(holds: bool, expected: str, data: Any, place: str) -> None:
    if not holds:
        raise _wrong(expected, data, place)


def _wrong(expected: str, data: Any, place: str) -> PlainError:
    shown = repr(data)
    return PlainError(f"{place}: expected {expected}, got {shown[:60]}{'…' * (len(shown) > 60)}")
