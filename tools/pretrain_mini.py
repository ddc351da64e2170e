"""Pre-train the embedded mini ViT on CIFAR-100's 50,000 training images.

    python tools/pretrain_mini.py --data FOLDER --work runs/pretrain --out src/fedprompt/backbone/mini

``FOLDER`` holds ``cifar-100-python``. A state is kept in ``--work`` after every epoch; the same command goes on there.
Half of the patches are dropped in all but the last epochs: nearly twice the epochs in the same time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from fedprompt.backbone.vit import Shape, VisionTransformer
from fedprompt.data.cifar100 import read_split

SHAPE = Shape(width=128, depth=6, heads=4, patch=4, image=32, classes=100)
MEAN = STD = 0.5


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
        right += int((model.head(model(normalise(images[i : i + 500]))).argmax(1) == labels[i : i + 500]).sum())
    return right / len(images)


def initialise(model: VisionTransformer) -> None:
    for name, value in model.named_parameters():
        if value.ndim > 1 and "norm" not in name:
            torch.nn.init.trunc_normal_(value, std=0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=22)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--full", type=float, default=0.09, help="share of the epochs, at the end, with all patches")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    train_images, train_labels, _ = read_split(args.data / "cifar-100-python", "train")
    test_images, test_labels, _ = read_split(args.data / "cifar-100-python", "test")
    model = VisionTransformer(SHAPE)
    initialise(model)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))
    steps = len(train_images) // args.batch
    total, warmup = steps * args.epochs, steps

    args.work.mkdir(parents=True, exist_ok=True)
    state_file = args.work / "state.pt"
    first, seconds = 0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, seconds = state["epoch"], state["seconds"]
    for epoch in range(first, args.epochs):
        generator = torch.Generator().manual_seed(1000 + epoch)
        began, running = time.perf_counter(), 0.0
        keep = 0.5 if epoch < args.epochs * (1 - args.full) else 1.0
        order = torch.randperm(len(train_images), generator=generator)
        for step in range(steps):
            at = epoch * steps + step
            rate = args.lr * min((at + 1) / warmup, 0.5 * (1 + math.cos(math.pi * at / total)))
            for group in optimizer.param_groups:
                group["lr"] = rate
            index = order[step * args.batch : (step + 1) * args.batch]
            images = normalise(augment(train_images[index], generator))
            loss = F.cross_entropy(logits(model, images, keep, generator), train_labels[index], label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            running += loss.item()
        seconds += time.perf_counter() - began
        score = accuracy(model, test_images, test_labels)
        print(
            f"epoch {epoch + 1}/{args.epochs} loss {running / steps:.3f} test {score:.4f} {seconds:.0f} s", flush=True
        )
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        torch.save({**state, "seconds": seconds}, state_file.with_suffix(".tmp"))
        state_file.with_suffix(".tmp").replace(state_file)

    half = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    model.load_state_dict({name: value.float() for name, value in half.items()})
    score = accuracy(model, test_images, test_labels)
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(half, args.out / "mini_vit.safetensors")
    about = {
        "architecture": "mini_vit_patch4_32", "width": SHAPE.width, "depth": SHAPE.depth, "heads": SHAPE.heads,
        "patch": SHAPE.patch, "image": SHAPE.image, "mlp_ratio": SHAPE.mlp_ratio,
        "layer_norm_eps": SHAPE.layer_norm_eps, "qkv_bias": True, "mean": [MEAN] * 3, "std": [STD] * 3,
        "classes": 100, "key_names": "timm", "dtype": "float16",
        "check": f"{100 * score:.1f} % top-1 on CIFAR-100's 10,000 test images after {args.epochs} epochs",
    }  # fmt: skip
    (args.out / "mini_vit.json").write_text(json.dumps(about, indent=2) + "\n")
    print(f"accuracy of the fp16 weights {score:.4f}, {seconds:.0f} s of training")


if __name__ == "__main__":
    main()
