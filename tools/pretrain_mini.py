"""Pre-train the embedded mini ViT: first on CIFAR-100's 50,000 training images, then on these and printed letters.

    python tools/pretrain_mini.py --data FOLDER --work runs/pretrain --out src/fedprompt/backbone/mini

``FOLDER`` holds ``cifar-100-python``. The state is kept in ``--work``; the same command goes on from it.

Stage 1: photographs alone, with half of the patches dropped (twice the epochs in the same time). Stage 2: a fresh
optimiser and batches of 48 photographs and 64 letters, from plain letters to hard ones; photographs get all patches in
the last two fifths. After stage 1 alone, a linear probe on all of digits6 gets 30 %: photographs do not teach strokes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
from pathlib import Path

import torch
from letters import CLASSES, draw_masks, letter_images
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from fedprompt.backbone.vit import Shape, VisionTransformer
from fedprompt.data.cifar100 import read_split

SHAPE = Shape(width=128, depth=6, heads=4, patch=4, image=32, classes=100 + CLASSES)
MEAN = STD = 0.5
BATCH = 128
RATES = (1.5e-3, 1e-3)  # peaks in the two stages
EPOCHS, HORIZON = 13, 22  # of stage 1; its learning rate follows a cosine that would reach zero at the horizon
STEPS, PIECE, HARD_FROM = 3000, 250, 0.6  # of stage 2; letters are at their hardest after that share of it


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip half of the uint8 images (batch, 3, 32, 32) and shift each by up to four pixels."""
    batch = len(images)
    flipped = torch.rand(batch, generator=generator) < 0.5
    images = torch.where(flipped[:, None, None, None], images.flip(-1), images)
    padded = F.pad(images.float(), (4, 4, 4, 4), mode="reflect")
    rows = torch.randint(0, 9, (batch, 1), generator=generator) + torch.arange(32)
    columns = torch.randint(0, 9, (batch, 1), generator=generator) + torch.arange(32)
    index = torch.arange(batch)[:, None, None]
    shifted = padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]]
    return shifted.permute(0, 3, 1, 2)


def normalise(images: Tensor) -> Tensor:
    return (images.float() / 255 - MEAN) / STD


def logits(model: VisionTransformer, images: Tensor, keep: float, generator: torch.Generator) -> Tensor:
    x = model.embed(images)
    if keep < 1:
        patches = x.shape[1] - 1
        kept = torch.rand(len(x), patches, generator=generator).argsort(1)[:, : int(patches * keep)] + 1
        kept = torch.cat([torch.zeros(len(x), 1, dtype=torch.long), kept], 1)
        x = x.gather(1, kept[:, :, None].expand(-1, -1, x.shape[2]))
    out: Tensor = model.head(model.prompted(x))
    return out


@torch.no_grad()
def accuracy(model: VisionTransformer, images: Tensor, labels: Tensor) -> float:
    right = 0
    for i in range(0, len(images), 500):
        scores = model.head(model(normalise(images[i : i + 500])))[:, :100]
        right += int((scores.argmax(1) == labels[i : i + 500]).sum())
    return right / len(images)


def initialise(model: VisionTransformer) -> None:
    for name, value in model.named_parameters():
        if value.ndim > 1 and "norm" not in name:
            torch.nn.init.trunc_normal_(value, std=0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(value)


def learning_rate(peak: float, step: int, warmup: int, total: int) -> float:
    return peak * min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / total)))


def new_optimizer(model: VisionTransformer) -> torch.optim.AdamW:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATES[0], betas=(0.9, 0.98))


def take_step(model: VisionTransformer, optimizer: torch.optim.AdamW, loss: Tensor, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


class Training:
    """Both stages, with a state on disk."""

    def __init__(self, data: Path, work: Path) -> None:
        self.images, self.labels, _ = read_split(data / "cifar-100-python", "train")
        self.test_images, self.test_labels, _ = read_split(data / "cifar-100-python", "test")
        self.masks, self.letters = draw_masks()
        torch.manual_seed(0)
        self.model = VisionTransformer(SHAPE)
        initialise(self.model)
        self.optimizer = new_optimizer(self.model)
        self.epochs, self.steps, self.seconds = 0, 0, 0.0
        work.mkdir(parents=True, exist_ok=True)
        self.file = work / "state.pt"
        if self.file.exists():
            state = torch.load(self.file, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.epochs, self.steps, self.seconds = state["epochs"], state["steps"], state["seconds"]

    def save(self, began: float) -> None:
        self.seconds += time.perf_counter() - began
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        counters = {"epochs": self.epochs, "steps": self.steps, "seconds": self.seconds}
        torch.save({**state, **counters}, self.file.with_suffix(".tmp"))
        self.file.with_suffix(".tmp").replace(self.file)

    def photographs(self) -> None:
        """Stage 1, epoch by epoch."""
        per_epoch = len(self.images) // BATCH
        while self.epochs < EPOCHS:
            began, running = time.perf_counter(), 0.0
            generator = torch.Generator().manual_seed(1000 + self.epochs)
            order = torch.randperm(len(self.images), generator=generator)
            for step in range(per_epoch):
                index = order[step * BATCH : (step + 1) * BATCH]
                images = normalise(augment(self.images[index], generator))
                scores = logits(self.model, images, 0.5, generator)[:, :100]
                loss = F.cross_entropy(scores, self.labels[index], label_smoothing=0.1)
                rate = learning_rate(RATES[0], self.epochs * per_epoch + step, per_epoch, HORIZON * per_epoch)
                take_step(self.model, self.optimizer, loss, rate)
                running += loss.item()
            self.epochs += 1
            self.save(began)
            score = accuracy(self.model, self.test_images, self.test_labels)
            print(f"epoch {self.epochs}/{EPOCHS} loss {running / per_epoch:.3f} test {score:.4f}", flush=True)

    def mixed(self) -> None:
        """Stage 2, in pieces of 250 steps."""
        if self.steps == 0:
            self.optimizer = new_optimizer(self.model)
        while self.steps < STEPS:
            began, right = time.perf_counter(), 0
            generator = torch.Generator().manual_seed(5000 + self.steps)
            for step in range(self.steps, self.steps + PIECE):
                photo = torch.randint(0, len(self.images), (48,), generator=generator)
                under = torch.randint(0, len(self.images), (64,), generator=generator)
                chosen = torch.randint(0, len(self.masks), (64,), generator=generator)
                hardness = min(1.0, step / (HARD_FROM * STEPS))
                drawn = letter_images(self.masks, self.images[under].float(), chosen, hardness, generator)
                keep = 0.5 if hardness < 1 else 1.0
                seen = logits(self.model, normalise(augment(self.images[photo], generator)), keep, generator)
                read = logits(self.model, normalise(drawn), 1.0, generator)
                labels = 100 + self.letters[chosen]
                loss = F.cross_entropy(read, labels, label_smoothing=0.1)
                loss = loss + F.cross_entropy(seen, self.labels[photo], label_smoothing=0.1)
                take_step(self.model, self.optimizer, loss, learning_rate(RATES[1], step, 100, STEPS))
                right += int((read.argmax(1) == labels).sum())
            self.steps += PIECE
            self.save(began)
            score = accuracy(self.model, self.test_images, self.test_labels)
            print(f"step {self.steps}/{STEPS} letters {right / PIECE / 64:.3f} test {score:.4f}", flush=True)

    def export(self, out: Path) -> None:
        """fp16 weights with a description beside them."""
        half = {name: value.half().contiguous() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict({name: value.float() for name, value in half.items()})
        score = accuracy(self.model, self.test_images, self.test_labels)
        out.mkdir(parents=True, exist_ok=True)
        content = save(half)
        (out / "mini_vit.safetensors").write_bytes(content)
        about = {
            "architecture": "mini_vit_patch4_32", "width": SHAPE.width, "depth": SHAPE.depth, "heads": SHAPE.heads,
            "patch": SHAPE.patch, "image": SHAPE.image, "mlp_ratio": SHAPE.mlp_ratio,
            "layer_norm_eps": SHAPE.layer_norm_eps, "qkv_bias": True, "mean": [MEAN] * 3, "std": [STD] * 3,
            "classes": SHAPE.classes, "key_names": "timm", "dtype": "float16",
            "sha256": hashlib.sha256(content).hexdigest(),
            "check": f"{100 * score:.1f} % top-1 on CIFAR-100's 10,000 test images",
        }  # fmt: skip
        (out / "mini_vit.json").write_text(json.dumps(about, indent=2) + "\n")
        print(f"accuracy of the fp16 weights {score:.4f}, {self.seconds:.0f} s of training")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    training = Training(args.data, args.work)
    training.photographs()
    training.mixed()
    training.export(args.out)


if __name__ == "__main__":
    main()
