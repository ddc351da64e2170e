"""Who trains in a round: one shuffled stream, replayed from the seed."""

import numpy as np
import pytest

from fedprompt.federation.participation import participants
from fedprompt.randomness import numpy_generator

CLIENTS = list(range(20))


def cohorts(seed, rounds, share=0.25, clients=CLIENTS):
    return [participants(seed, number, clients, share) for number in range(1, rounds + 1)]


def test_a_round_is_the_same_whenever_it_is_asked_for():
    forwards = cohorts(3, 6)
    backwards = [participants(3, number, CLIENTS, 0.25) for number in range(6, 0, -1)]
    assert forwards == backwards[::-1]


def test_the_seed_and_the_round_decide():
    assert cohorts(0, 6) != cohorts(1, 6)
    assert len({tuple(cohort) for cohort in cohorts(0, 6)}) > 1


def test_the_rounds_are_one_stream_shuffled_on():
    """The textbook loop: one generator and one list for the whole run, shuffled before each round."""
    generator, order = numpy_generator(5, "participants"), np.array(CLIENTS)
    expected = []
    for _ in range(4):
        generator.shuffle(order)
        expected.append(sorted(order[:5].tolist()))
    assert cohorts(5, 4) == expected


@pytest.mark.parametrize(
    ("share", "clients", "count"),
    [(1.0, 20, 20), (0.25, 20, 5), (0.3, 10, 3), (0.29, 10, 2), (0.01, 20, 1), (0.1, 1, 1)],
)
def test_the_share_is_rounded_down_but_somebody_always_trains(share, clients, count):
    cohort = participants(0, 1, list(range(clients)), share)
    assert len(cohort) == len(set(cohort)) == count


def test_only_members_take_part_and_their_order_does_not_matter():
    members = [2, 3, 5, 7, 11, 13]
    for number in range(1, 10):
        cohort = participants(0, number, members, 0.5)
        assert set(cohort) <= set(members)
        assert cohort == participants(0, number, members[::-1], 0.5)


def test_every_client_is_sampled_in_the_long_run():
    assert {client for cohort in cohorts(0, 40) for client in cohort} == set(CLIENTS)
