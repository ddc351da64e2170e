"""Who trains in a round."""

from __future__ import annotations

import math

import numpy as np

from fedprompt.randomness import numpy_generator


def participants(seed: int, round_number: int, clients: list[int], share: float) -> list[int]:
    """The clients of a round: the first ones after the round's shuffle of one stream for the whole run.

    The stream is replayed from its start, so the answer depends on the seed and the round alone. At least one client
    takes part. A stream that is shuffled on leaves fewer clients never sampled than one that is seeded anew each round.

    >>> participants(0, 1, [0, 1, 2, 3], 1.0)
    [0, 1, 2, 3]
    >>> len(participants(0, 7, list(range(100)), 0.05))
    5
    """
    count = max(1, math.floor(share * len(clients) + 1e-9))
    if count == len(clients):
        return sorted(clients)
    generator = numpy_generator(seed, "participants")
    order = np.array(sorted(clients))
    for _ in range(round_number):
        generator.shuffle(order)
    return sorted(int(client) for client in order[:count])
