"""What prompts are before training: what they leave of the feature, how many different tokens they are, how long.

    python tools/prompt_starts.py --weights vit_tiny.safetensors --out results/prompt-starts.json

For each start, ten prompts in every layer of the preset's backbone, on images of the first client of PACS
(``FEDPROMPT_DATA`` says where it lies).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from fedprompt.backbone.prompt_start import PromptStart, initial_prompt
from fedprompt.backbone.vit import Prompt
from fedprompt.backbone.weights import Backbone
from fedprompt.config import load_config
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.federation.simulation import Simulation
from fedprompt.randomness import torch_generator

LENGTH, IMAGES = 10, 64


@torch.no_grad()
def by_start(backbone: Backbone, embedded: Tensor) -> dict[str, dict[str, Any]]:
    """For each start the cosine of the CLS feature with and without prompts, and by layer tokens and length."""
    vit = backbone.vit
    plain = vit.prompted(embedded).float()
    found = {}
    for start in get_args(PromptStart):
        prompt = initial_prompt(backbone, start, vit.shape.depth, LENGTH, torch_generator(0, "prompt starts"))
        feature = vit.prompted(embedded, [Prompt(prompt.to(embedded.device))]).float()
        found[start] = {
            "cosine": round(float(F.cosine_similarity(feature, plain, dim=-1).mean()), 4),
            "different": [round(different(layer), 2) for layer in prompt],
            "rms": [round(float(layer.square().mean().sqrt()), 4) for layer in prompt],
        }
    return found


def different(tokens: Tensor) -> float:
    """How many tokens (count, width) there are in effect, by their directions, which are all that LayerNorm leaves.

    It is the participation ratio of the eigenvalues of their cosines.
    """
    directions = F.normalize(tokens, dim=-1)
    eigenvalues = torch.linalg.eigvalsh(directions @ directions.T)
    return float(eigenvalues.sum() ** 2 / eigenvalues.square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True, help="file or hub id of the backbone's weights")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    given = parser.parse_args()
    changes = {"backbone.weights": given.weights, "backbone.precision": "fp32", "method": "fedvpt-d", "threads": 1}
    simulation = Simulation(load_config("pacs", changes))
    method, images = simulation.method, simulation.train_data[0]
    embedded = images.batch(torch.arange(min(IMAGES, len(images))), method.needs).embedded
    assert embedded is not None
    write_atomically(given.out, json.dumps(by_start(simulation.backbone, embedded), indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
