"""Figures 1, 2 and 4: local training against textbook code, against transformers, and against the machine's limit."""

from __future__ import annotations

import time
from typing import Any

import torch
from models import CLASSES, Case, backbone, images
from textbook import TextbookFedVPTDeep, TextbookPFedBayesPT, TransformersFedVPTDeep
from timing import ratios, take_turns

from fedprompt.backbone.cache import ClientData
from fedprompt.backbone.weights import Backbone
from fedprompt.methods.base import Context, Method, Task, Tensors
from fedprompt.methods.fedvpt_d import FedVPTDeep
from fedprompt.methods.pfedbayespt import PFedBayesPT
from fedprompt.methods.training import Schedule, train
from fedprompt.randomness import torch_generator

PROMPTS = 10  # the paper's K


def epoch(method: Method, data: ClientData, start: Tensors, batch: int) -> Tensors:
    """One local epoch, by the product's own loop, from the same start with the same batches and draws."""
    context = Context({}, 1, 0, torch_generator(0, "train", 1, 0))
    return train(method, start, data, Schedule(1, batch), context, seed=0)


def start_of(method: Method) -> Tensors:
    """What a client of the first round trains."""
    state = method.initial(0)
    return {**method.payload(state, 0), **state.personal}


def _build(kind: type[Method], model: Backbone) -> Method:
    settings = PFedBayesPT.Settings(length=PROMPTS) if issubclass(kind, PFedBayesPT) else FedVPTDeep.Settings()
    return kind(settings, Task(model, CLASSES, 1))


def local_epoch(case: Case, kinds: dict[str, tuple[type[Method], torch.dtype]]) -> dict[str, Any]:
    """Each kind's epoch against the first one's, and the largest difference of what they trained."""
    models = {dtype: backbone(case.shape, dtype) for _, dtype in kinds.values()}
    clients = {dtype: images(model, case.images) for dtype, model in models.items()}
    methods = {name: _build(kind, models[dtype]) for name, (kind, dtype) in kinds.items()}
    start = start_of(next(iter(methods.values())))
    trained: dict[str, Tensors] = {}

    def run(name: str) -> None:
        trained[name] = epoch(methods[name], clients[kinds[name][1]], start, case.batch)

    seconds = take_turns({name: (lambda name=name: run(name)) for name in kinds}, case.repeats)
    base = next(iter(kinds))
    found = ratios(seconds, base)
    for name, figures in found.items():
        figures["images_per_second"] = case.images / figures["seconds"]
        figures["difference"] = _difference(trained[name], trained[base], start)
    return {"case": case.name, "images": case.images, "batch": case.batch, "candidates": found}


def _difference(ours: Tensors, theirs: Tensors, start: Tensors) -> float:
    """The largest distance between the trained tensors, as a share of how far they moved."""
    shares = [
        float((ours[name] - theirs[name]).norm() / (theirs[name] - start[name]).norm().clamp_min(1e-12))
        for name in start
    ]
    return max(shares)


def pfedbayespt(case: Case) -> dict[str, Any]:
    """Figure 1."""
    return local_epoch(
        case,
        {
            "textbook fp32": (TextbookPFedBayesPT, torch.float32),
            "fedprompt fp32": (PFedBayesPT, torch.float32),
            "fedprompt bf16": (PFedBayesPT, torch.bfloat16),
        },
    )


def fedvpt_deep(case: Case) -> dict[str, Any]:
    """Figure 2."""
    return local_epoch(
        case,
        {
            "textbook fp32": (TextbookFedVPTDeep, torch.float32),
            "transformers fp32": (TransformersFedVPTDeep, torch.float32),
            "fedprompt fp32": (FedVPTDeep, torch.float32),
            "fedprompt bf16": (FedVPTDeep, torch.bfloat16),
        },
    )


def share_of_limit(case: Case, dtype: torch.dtype, size: int = 4096) -> dict[str, Any]:
    """Figure 4: useful FLOP/s of a FedVPT-D training step over those of one large matmul, in turns."""
    model = backbone(case.shape, dtype)
    method = _build(FedVPTDeep, model)
    data = images(model, case.images)
    start = start_of(method)
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    work = useful_flops(case)
    seconds = take_turns(
        {"matmul": lambda: left @ right, "step": lambda: epoch(method, data, start, case.batch)}, case.repeats
    )
    shares = [
        (work / step) / (2 * size**3 / matmul) for matmul, step in zip(seconds["matmul"], seconds["step"], strict=True)
    ]
    shares.sort()
    return {
        "case": case.name,
        "format": str(dtype).removeprefix("torch."),
        "share": shares[len(shares) // 2],
        "lowest": shares[0],
        "highest": shares[-1],
        "gflops_of_matmul": 2 * size**3 / sorted(seconds["matmul"])[len(seconds["matmul"]) // 2] / 1e9,
    }


def useful_flops(case: Case) -> float:
    """Multiplications and additions that an epoch of FedVPT-D cannot do without, matrix products alone.

    Forward: patches, and in each block queries, keys, values, attention, projection and MLP of the image's tokens, keys
    and values of the shared prompts once a batch; the last block has one query. Backward: the same again without
    weight gradients, which a frozen backbone does not have; the first block's own inputs need no gradient.
    """
    shape = case.shape
    width, tokens, hidden = shape.width, shape.tokens, int(shape.width * shape.mlp_ratio)
    steps = -(-case.images // case.batch)
    embed = 2 * (tokens - 1) * width * 3 * shape.patch**2

    def block(queries: int) -> dict[str, float]:
        return {
            "qkv": 2 * width * width * (queries + 2 * tokens),
            "attention": 2 * 2 * queries * (tokens + PROMPTS) * width,
            "rest": 2 * queries * width * (width + 2 * hidden),
        }

    total = embed * case.images
    for layer in range(shape.depth):
        parts = block(1 if layer == shape.depth - 1 else tokens)
        forward = sum(parts.values())
        # Backward of attention has four products where forward has two; the first block's tokens need no gradient.
        backward = 2 * parts["attention"] + parts["rest"] + (0 if layer == 0 else parts["qkv"])
        total += (forward + backward) * case.images
        total += 2 * 2 * 2 * PROMPTS * width * width * steps
    return float(total)


def one_off_features(case: Case) -> dict[str, float]:
    """Seconds to compute the frozen features of the images once, which the epochs above no longer pay for."""
    model = backbone(case.shape)
    method = _build(PFedBayesPT, model)
    data = images(model, case.images)
    began = time.perf_counter()
    data.batch(torch.arange(1), method.needs)
    return {"seconds": time.perf_counter() - began, "images": case.images}
