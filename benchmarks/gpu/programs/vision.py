"""Trains a vision transformer of timm on images whose sides grow, with a short batch per epoch.

python vision.py
"""

from __future__ import annotations

import argparse

import timm
import torch
from memory import print_memory

SIDES = (128, 160, 192, 224)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2, help="of each side")
    parser.add_argument("--batches", type=int, default=8, help="full ones of an epoch")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = timm.create_model(args.model, num_classes=100, dynamic_img_size=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    random = torch.Generator().manual_seed(0)
    for side in SIDES:
        for _ in range(args.epochs):
            for batch in [args.batch] * args.batches + [args.batch // 3]:
                images = torch.randn(batch, 3, side, side, generator=random).to(device)
                labels = torch.randint(100, (batch,), generator=random).to(device)
                with torch.autocast(device, torch.bfloat16):
                    loss = torch.nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            with torch.no_grad(), torch.autocast(device, torch.bfloat16):
                images = torch.randn(2 * args.batch, 3, side, side, generator=random).to(device)
                model(images)
            model.train()
    print_memory(loss.item())


if __name__ == "__main__":
    main()
