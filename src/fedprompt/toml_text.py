"""Writing TOML: the standard library only reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def to_toml(tree: Mapping[str, Any]) -> str:
    """Plain values as TOML, tables last.

    >>> print(to_toml({"seed": 0, "data": {"name": "digits6", "sizes": [1, 2]}}))
    seed = 0
    <BLANKLINE>
    [data]
    name = "digits6"
    sizes = [1, 2]
    """
    return "\n".join(_toml_lines(tree, ())).strip()


def _toml_lines(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[str]:
    values = {key: value for key, value in tree.items() if not isinstance(value, Mapping)}
    if path and values:
        yield f"\n[{'.'.join(path)}]"
    for key, value in values.items():
        yield f"{key} = {_toml_value(value)}"
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _toml_lines(value, (*path, key))


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)  # TOML's basic strings have JSON's escapes
