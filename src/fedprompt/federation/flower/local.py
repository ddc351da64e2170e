"""A whole federation on one machine, to try it: SuperLink and SuperNodes as real processes, with TLS and node keys."""

from __future__ import annotations

import os
from pathlib import Path

from fedprompt import runs
from fedprompt.config import Config, load_config
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.federation.flower.charter import read_charter
from fedprompt.federation.flower.credentials import make_node_keys
from fedprompt.federation.flower.headquarters import (
    Headquarters,
    Report,
    admit,
    follow,
    init_federation,
    split_address,
    write_connection,
)
from fedprompt.federation.flower.node_folder import start_command
from fedprompt.federation.flower.node_settings import NodeSettings
from fedprompt.federation.flower.papers import Card, Invitation
from fedprompt.federation.flower.processes import Processes, environment, free_ports
from fedprompt.federation.population import Population
from fedprompt.run_folder import new_folder


def prepare(config: Config, out: Path) -> Path:
    """A run folder with a federation in it: ``server/``, and for each client a node in ``nodes/``."""
    population = Population(config)  # before the folder: a mistake in the settings leaves nothing behind
    folder = new_folder(out, f"{config.name}-{config.method}-seed{config.seed}-flower").resolve()
    server = folder / "server"
    invitation = init_federation(server, folder, config, population.dataset.classes, f"127.0.0.1:{free_ports(1)[0]}")
    for client, part in enumerate(population.parts):
        own = NodeSettings(
            name=f"client-{client}",
            share_of=folder / "config.toml",
            share=client,
            weights=config.backbone.weights,
            device=config.device,
            threads=node_threads(config, len(population.parts)),
        )
        place = folder / "nodes" / own.name
        card = Card(name=own.name, key=make_node_keys(place), images=len(part.train))
        write_atomically(place / "ca.crt", invitation.certificate.encode())
        invitation.write(place / "invitation.toml")
        own.write(place)
        admit(server, card, trains=client in population.members)
    read_charter(server).begin().write(server)
    return folder


def node_threads(config: Config, nodes: int) -> int:
    """Threads for each of these nodes on this machine: more than there are cores is far slower than fewer."""
    return config.threads or max(1, (os.cpu_count() or 1) // nodes)


class LocalFederation:
    """The processes of a federation on one machine."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder = folder.resolve()
        self.server = self.folder / "server"
        self.processes = processes
        self.config = load_config(self.folder / "config.toml")
        self.names = list(read_charter(self.server).members)
        self.headquarters = Headquarters(self.server, processes, self.config.threads or None)

    def start(self, *, nodes: bool = True) -> None:
        """Start the SuperLink on a port that is free now, and all nodes."""
        self._move(f"127.0.0.1:{free_ports(1)[0]}")
        self.headquarters.start()
        if nodes:
            for name in self.names:
                self.start_node(name)

    def start_node(self, name: str, **more: str) -> None:
        """Start one client's SuperNode; ``more`` goes into its environment."""
        place = self.folder / "nodes" / name
        command = start_command(place, free_ports(1)[0])
        nodes = len(self.names)
        around = environment(place / "flower", node_threads(self.config, nodes), max(0.5, nodes / 8)) | more
        self.processes.start(name, command, place / "supernode.log", around)

    def train(self, report: Report = lambda record: None) -> runs.Run:
        """Drive the run to its end, reporting each round's record as it comes."""
        return follow(self.headquarters, self.folder, report)

    def _move(self, address: str) -> None:
        """Let everybody know the address of this start."""
        charter = read_charter(self.server).model_copy(update={"address": address})
        charter.write(self.server)
        write_connection(self.server, split_address(address)[1])
        for name in self.names:
            path = self.folder / "nodes" / name / "invitation.toml"
            Invitation.read(path).model_copy(update={"address": address}).write(path)


def check_resumable(folder: Path) -> Path:
    """A run folder that has a federation in it."""
    if not (folder / "server").is_dir():
        raise UserError(f"There is no federation to go on with in {str(folder)!r}.")
    read_charter(folder / "server")
    return folder
