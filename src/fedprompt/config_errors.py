"""What is wrong with the settings, as one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_NUMBER = "a number"
_WHOLE = "a whole number"
_MUST_BE = {  # pydantic's kind of complaint, and what it wants
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a table of settings",
    "finite_number": "a finite number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "a smaller whole number",
    "int_type": _WHOLE,
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "model_attributes_type": "a table of settings",
    "model_type": "a table of settings",
    "path_type": "a path",
    "string_pattern_mismatch": "a plain name, without a slash",
    "string_type": "text",
    "tuple_type": "a list",
}


def sentence(error: ValidationError, kind: type[BaseModel], prefix: str = "") -> str:
    """The first of pydantic's complaints as one sentence."""
    complaints = error.errors()
    first = complaints[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        return _unknown(prefix, path, kind)
    known = _setting_path(kind, path)
    # A setting of several kinds, a word or a list, gets a complaint for each kind.
    about_it = [one for one in complaints if [str(part) for part in one["loc"]][: len(known)] == known]
    wanted = list(dict.fromkeys(_must_be(one, nested=len(one["loc"]) > len(known) + 1) for one in about_it))
    value = first["input"]
    return f"The setting {prefix + '.'.join(known)!r} is {value!r}, but it must be {', or '.join(wanted)}."


def _must_be(complaint: ErrorDetails, *, nested: bool) -> str:
    wanted = _MUST_BE.get(complaint["type"])
    if wanted is None:
        return f"otherwise ({complaint['msg'][0].lower()}{complaint['msg'][1:]})"
    wanted = wanted.format(**complaint.get("ctx", {}))
    return f"a list whose items are each {wanted}" if nested else wanted


def _unknown(prefix: str, path: list[str], kind: type[BaseModel]) -> str:
    """No such setting; one of that name elsewhere, or the nearest beside it."""
    found = [key for key in _all_settings(kind) if key.rpartition(".")[2] == path[-1]]
    if not found:
        near = difflib.get_close_matches(path[-1], _fields_at(kind, path[:-1]), n=1)
        found = [".".join([*path[:-1], name]) for name in near]
    hint = f"; did you mean {prefix + found[0]!r}?" if found else "."
    return f"There is no setting {prefix + '.'.join(path)!r}{hint}"


def _setting_path(kind: type[BaseModel], path: list[str]) -> list[str]:
    """The part of pydantic's address that names a setting; the rest says which kind of value it tried."""
    known: list[str] = []
    for part in path:
        fields = _fields_at(kind, known)
        if part not in fields and known[:1] != ["methods"]:
            break
        known.append(part)
    return known


def _fields_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = kind.model_fields.get(part)
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return []
        kind = field.annotation
    return list(kind.model_fields)


def _all_settings(kind: type[BaseModel], path: tuple[str, ...] = ()) -> Iterable[str]:
    for name in _fields_at(kind, list(path)):
        yield ".".join((*path, name))
        yield from _all_settings(kind, (*path, name))
