"""Python reads this at the start of each process of a node under test: it records what is sent, or makes it misbehave.

It stands for a node whose owner changed the program. The server is never started with it.
"""

import os
import sys
import time

PROGRAM = next((part.rpartition("/")[2] for part in sys.orig_argv if "flower-supernode" in part or "flwr-" in part), "")


def record(folder):
    """Write the body of every request that the SuperNode sends, before it is encrypted."""
    import httpx

    send = httpx.HTTPTransport.handle_request

    def recording(self, request):
        name = f"{time.time_ns()}{request.url.path.replace('/', '_')}"
        head = "".join(f"{key}: {value}\n" for key, value in request.headers.items())
        with open(os.path.join(folder, name), "wb") as file:
            file.write(f"{request.method} {request.url}\n{head}\n".encode() + request.read())
        return send(self, request)

    httpx.HTTPTransport.handle_request = recording


def misbehave(how):
    """Change an update just before it is sent."""
    import torch

    from fedprompt.federation.flower import wire
    from fedprompt.methods.base import Update

    honest = wire.update_content

    def wrong(update):
        tensors, examples = dict(update.tensors), update.examples
        first = next(iter(tensors))
        if how in ("nan", "inf"):
            tensors[first] = tensors[first].clone()
            tensors[first].view(-1)[0] = float(how)
        elif how == "name":
            tensors["stranger"] = tensors.pop(first)
        elif how == "shape":
            tensors[first] = tensors[first].reshape(-1)
        elif how == "dtype":
            tensors[first] = tensors[first].double()
        elif how == "none":
            examples = 0
        elif how == "many":
            examples = 10**9
        elif how == "far":
            tensors = {name: value + 1000 * torch.ones_like(value) for name, value in tensors.items()}
        elif how == "garbage":
            content = honest(update)
            content["update"][first].data = b"cos\nsystem\n(S'true'\ntR."
            return content
        return honest(Update(update.client, tensors, examples, update.metrics))

    wire.update_content = wrong


def slow(seconds, flag):
    """Take long over each training while the flag file is there."""
    from fedprompt.federation.flower.node import Node

    train = Node.train

    def slowly(self, *arguments):
        if os.path.exists(flag):
            time.sleep(seconds)
        return train(self, *arguments)

    Node.train = slowly


if PROGRAM == "flower-supernode" and (folder := os.environ.get("TEST_RECORD")):
    record(folder)
if PROGRAM == "flwr-clientapp" and (how := os.environ.get("TEST_MISBEHAVE")):
    misbehave(how)
if PROGRAM == "flwr-clientapp" and (flag := os.environ.get("TEST_SLOW")):
    slow(float(os.environ["TEST_SLOW_SECONDS"]), flag)
