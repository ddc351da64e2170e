"""Nodes that send nonsense are refused by name and the round goes on; strangers get in nowhere."""

import shutil
import time

import pytest
import torch
from flower.conftest import inside

from fedprompt.config import load_config
from fedprompt.federation.flower.credentials import make_node_keys, make_server_certificates
from fedprompt.federation.flower.local import LocalFederation, prepare
from fedprompt.federation.flower.node_folder import start_command
from fedprompt.federation.flower.processes import Processes, environment, free_ports
from fedprompt.federation.round import finish_round, train_client
from fedprompt.federation.simulation import Simulation

pytestmark = pytest.mark.federation

HONEST = 3
BAD = {
    "nan": "not finite",
    "name": "other tensors",
    "shape": "instead of",
    "dtype": "instead of",
    "none": "claims 0 images",
    "many": "claims 1000000000 images",
    "far": "far more than the cohort",
    "garbage": "bytes, which do not fill",
}


@pytest.fixture(scope="module")
def attacked(tiny_toml, tmp_path_factory):
    """One round with three honest nodes and one of each bad kind."""
    changes = {"partition.clients": HONEST + len(BAD), "training.rounds": 1, "evaluation.last": 1}
    changes |= {"federation.deadline": 1200.0, "data.test_fraction": 0.3}  # all answer: only a slow machine waits long
    with Processes() as processes:
        folder = prepare(load_config(tiny_toml, changes), tmp_path_factory.mktemp("attacked"))
        federation = LocalFederation(folder, processes)
        federation.start(nodes=False)
        kinds = dict(zip(range(HONEST, HONEST + len(BAD)), BAD, strict=True))
        for client, name in enumerate(federation.names):
            federation.start_node(name, **(inside(TEST_MISBEHAVE=kinds[client]) if client in kinds else {}))
        run = federation.train()
    late = [
        sentence for record in run.records for key in ("missing", "not_evaluated") for sentence in record.get(key, [])
    ]
    assert not late, late
    return run


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_update_is_refused_by_name_and_the_round_goes_on(attacked, kind):
    (record,) = attacked.records
    client = HONEST + list(BAD).index(kind)
    (sentence,) = (text for text in record["refused"] if text.startswith(f"client {client} "))
    assert BAD[kind] in sentence
    assert len(record["refused"]) == len(BAD)


def test_the_model_is_that_of_the_honest_alone(attacked):
    engine = Simulation(attacked.config)
    updates, kept = [], {}
    state = engine.start()
    for client in range(HONEST):
        payload = engine.method.payload(engine.fresh, client)
        arguments = (engine.method, payload, engine.fresh.personal, engine.train_data[client], engine.schedule)
        kept[client], update = train_client(*arguments, seed=engine.config.seed, round_number=1, client=client)
        updates.append(update)
    registered = dict.fromkeys(range(HONEST), 10**6)
    after, _ = finish_round(engine.method, state, engine.fresh.personal, updates, kept, registered)
    mine = attacked.state()
    assert mine.participations == dict.fromkeys(range(HONEST), 1)
    for name, value in after.shared.items():
        torch.testing.assert_close(mine.shared[name], value, rtol=0, atol=1e-6)


def test_the_figures_are_those_of_the_honest_alone(attacked):
    assert all(abs(value) < 1e3 for value in attacked.records[0]["training"].values())
    assert len(attacked.records[0]["accuracy"]) == HONEST + len(BAD), "the refused are evaluated with fresh heads"


def test_strangers_get_in_nowhere(federation, tiny_toml, processes, tmp_path):
    """Another key under a known name, no key at all, and a server whose certificate the node does not believe."""
    here = federation(tiny_toml, {"partition.clients": 2, "training.rounds": 1})
    here.start(nodes=False)
    place = here.folder / "nodes" / "client-0"
    logs = {}

    def try_node(name, folder):
        around = environment(folder / "flower", 1)
        logs[name] = folder / "supernode.log"
        command = [*start_command(folder, free_ports(1)[0]), "--max-wait-time", "15"]
        processes.start(name, command, logs[name], around)

    stranger = shutil.copytree(place, tmp_path / "stranger")
    make_node_keys(stranger)  # client-0's settings and name, another key
    try_node("stranger", stranger)
    deceived = shutil.copytree(place, tmp_path / "deceived")
    make_server_certificates(tmp_path / "other", ["127.0.0.1"])
    shutil.copy(tmp_path / "other" / "ca.crt", deceived / "ca.crt")  # it trusts another authority: a false server to it
    try_node("deceived", deceived)
    keyless = shutil.copytree(place, tmp_path / "keyless")
    command = start_command(keyless, free_ports(1)[0])
    at = command.index("--auth-supernode-private-key")
    logs["keyless"] = keyless / "supernode.log"
    command = [*command[:at], *command[at + 2 :], "--max-wait-time", "15"]
    processes.start("keyless", command, logs["keyless"], environment(keyless / "flower", 1))
    here.start_node("client-1")  # the control: a known key gets in
    until = time.monotonic() + 120
    control = here.folder / "nodes" / "client-1" / "supernode.log"
    while "SuperNode ID" not in control.read_text() and time.monotonic() < until:
        time.sleep(0.5)
    assert "SuperNode ID" in control.read_text()
    while any(processes.running[name].poll() is None for name in logs) and time.monotonic() < until:
        time.sleep(0.5)
    for name, log in logs.items():
        assert processes.running[name].poll() not in (None, 0), f"{name} was not turned away: {log.read_text()}"
        assert "SuperNode ID" not in log.read_text(), name
