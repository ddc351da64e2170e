"""All methods, found by themselves: a new file in this folder with a :class:`Method` that has a ``key`` is one more."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache

from fedprompt.errors import UserError
from fedprompt.methods.base import Method


@cache
def methods() -> dict[str, type[Method]]:
    """Every method by its key, in the order in which the paper lists them."""
    found: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Method) and "key" in vars(value) and value.key:
                found[value.key] = value
    return dict(sorted(found.items(), key=lambda item: (item[1].rank, item[0])))


def method_class(key: str) -> type[Method]:
    """The method with this key.

    >>> method_class("fedvpt").title
    'FedVPT'
    """
    if key in methods():
        return methods()[key]
    near = difflib.get_close_matches(key, methods(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(methods())}."
    raise UserError(f"There is no method {key!r}; {hint}")
