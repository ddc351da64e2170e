"""Nodes that are late, slow or killed: rounds go on with the others, and who returns has its personal tensors."""

import signal
import time

import pytest
import torch
from flower.conftest import inside

from fedprompt.config import load_config
from fedprompt.federation.flower.local import LocalFederation, prepare
from fedprompt.federation.flower.processes import Processes
from fedprompt.federation.round import finish_round, train_client
from fedprompt.federation.simulation import Simulation
from fedprompt.run_folder import read_records
from fedprompt.runs import load_run

pytestmark = pytest.mark.federation

DEADLINE = 30.0
PATIENCE = 900.0


@pytest.fixture(scope="module")
def disturbed(tiny_toml, tmp_path_factory):
    """A run in which client 3 comes late, client 0 is slow in a round, and client 1 is killed in it and comes back."""
    out = tmp_path_factory.mktemp("disturbed")
    flag = out / "slow"
    changes = {"training.rounds": 40, "evaluation.every": 100, "evaluation.last": 1}
    changes |= {"federation.deadline": DEADLINE, "federation.min_clients": 2, "federation.attempts": 10}
    with Processes() as processes:
        here = LocalFederation(prepare(load_config(tiny_toml, changes), out), processes)
        here.start(nodes=False)
        here.start_node("client-0", **inside(TEST_SLOW=str(flag), TEST_SLOW_SECONDS=str(DEADLINE + 5)))
        here.start_node("client-1")
        here.start_node("client-2")
        here.headquarters.submit()

        def wait_until(condition):
            until = time.monotonic() + PATIENCE
            while not condition(read_records(here.folder / "metrics.jsonl")):
                assert time.monotonic() < until, read_records(here.folder / "metrics.jsonl")
                here.headquarters.check()
                time.sleep(0.2)
            return len(read_records(here.folder / "metrics.jsonl"))

        wait_until(lambda records: len(records) >= 1)
        here.start_node("client-3")
        joined = wait_until(lambda records: accepted(records[-1]) == [0, 1, 2, 3])
        flag.touch()
        processes.running["client-1"].send_signal(signal.SIGKILL)
        without = wait_until(lambda records: accepted(records[-1]) == [2, 3])
        flag.unlink()
        processes.stop("client-1")
        # The SuperLink lets a node in again when it has noticed that the old one is gone.
        wait_until(lambda records: "client 1 is not connected" in records[-1].get("missing", []))
        here.start_node("client-1")
        back = wait_until(lambda records: accepted(records[-1]) == [0, 1, 2, 3])
        processes.stop()  # in the middle of whatever it does now
    return load_run(here.folder), joined, without, back


def accepted(record):
    gone = {int(text.split()[1]) for text in record.get("missing", []) + record.get("refused", [])}
    return [client for client in record["participants"] if client not in gone]


def test_a_node_that_comes_late_is_not_waited_for_beyond_the_deadline_and_takes_part_then(disturbed):
    run, joined, _, _ = disturbed
    assert run.records[0]["missing"] == ["client 3 is not connected"]
    assert accepted(run.records[joined - 1]) == [0, 1, 2, 3]


def test_a_round_goes_on_without_a_slow_and_a_killed_node_and_names_them(disturbed):
    run, _, without, _ = disturbed
    slow, killed = run.records[without - 1]["missing"]
    assert slow == f"client 0 did not answer within {DEADLINE:g} s"
    assert killed.startswith("client 1 ")


def test_who_returns_goes_on_with_its_own_personal_tensors(disturbed):
    """The whole history replayed in this process, with just those who were accepted, ends in the same tensors."""
    run, _, _, back = disturbed
    final = run.state()
    assert final.round >= back
    engine = Simulation(run.config)
    state = engine.start()
    for record in run.records[: final.round]:
        updates, kept = [], {}
        for client in accepted(record):
            payload = engine.method.payload(engine.groups(state), client)
            arguments = (engine.method, payload, engine.personal(state, client), engine.train_data[client])
            kept[client], update = train_client(
                *arguments, engine.schedule, seed=run.config.seed, round_number=record["round"], client=client
            )
            updates.append(update)
        state, refused = finish_round(
            engine.method, state, engine.fresh.personal, updates, kept, dict.fromkeys(kept, 10**6)
        )
        assert refused == []
    assert state.participations == final.participations
    for name, value in state.shared.items():
        torch.testing.assert_close(final.shared[name], value, rtol=0, atol=1e-6, msg=name)
