"""The same rounds over a real network, carried by Flower (``pip install 'fedprompt[flower]'``).

Flower brings the connections, TLS, the identity of nodes and the processes. What a round is, who takes part, what is
refused and what is written down is the code that the in-process engine uses.
"""

from __future__ import annotations

from importlib.util import find_spec

from fedprompt.errors import UserError


def require_flower() -> None:
    """One sentence where the optional extra is not installed."""
    if find_spec("flwr") is None:
        raise UserError("This needs Flower; install it with: pip install 'fedprompt[flower]'.")
