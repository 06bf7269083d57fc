"""One training run on one device, under one allocator: what a process of the benchmark does."""

from __future__ import annotations

import gc
import hashlib
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from models import MODELS, Decoder

import stalloc

PROFILED = 3


@dataclass
class Run:
    """What to train, and how."""

    model: str
    allocator: str  # "torch", "expandable" (by the environment), "stalloc"
    device: str = "cuda"
    batch: int = 8
    microbatches: int = 4
    steps: int = 20
    warmup: int = 6
    recompute: bool = False
    deterministic: bool = False
    losses: list[float] = field(default_factory=list)

    def train(self) -> dict[str, Any]:
        """Trains, and returns what was measured; "out_of_memory" says where memory ran out."""
        torch.manual_seed(0)
        if self.deterministic:
            torch.use_deterministic_algorithms(True)
        config = MODELS[self.model]
        try:
            model = Decoder(config, self.recompute).to(self.device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
            self._settle(model, optimizer, config.sequence, config.vocabulary)
            return self._measure(model, optimizer, config.sequence, config.vocabulary)
        except (torch.OutOfMemoryError, stalloc.OutOfMemory) as error:
            return {"out_of_memory": str(error).splitlines()[0]}
        finally:
            stalloc.disable()

    def _settle(
        self, model: Decoder, optimizer: torch.optim.Optimizer, length: int, vocabulary: int
    ) -> None:
        """Warms up; every allocator runs as many steps, so that their losses can be compared."""
        first = 0
        if self.allocator == "stalloc":
            with stalloc.profile(model) as prof:
                for first in range(1, PROFILED + 1):
                    self._step(model, optimizer, length, vocabulary, first - 1)
                    prof.step()
            gc.collect()
            stalloc.enable(prof.plan(), model=model)
        for step in range(first, PROFILED + self.warmup):
            self._step(model, optimizer, length, vocabulary, step)
            stalloc.step()

    def _measure(
        self, model: Decoder, optimizer: torch.optim.Optimizer, length: int, vocabulary: int
    ) -> dict[str, Any]:
        gpu = self.device.startswith("cuda")
        if gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        times = []
        for step in range(self.steps):
            start = time.perf_counter()
            self._step(model, optimizer, length, vocabulary, 1000 + step)
            stalloc.step()
            if gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        step_time = sorted(times)[len(times) // 2]
        result: dict[str, Any] = {
            "step_seconds": step_time,
            "tokens_per_second": self.batch * self.microbatches * length / step_time,
            "losses": self.losses,
            "weights": self._digest(model),
        }
        if gpu:
            stats = torch.cuda.memory_stats()
            load, reserved = (
                stats["requested_bytes.all.peak"],
                stats["reserved_bytes.all.peak"],
            )
            result |= {"load": load, "peak_reserved": reserved, "efficiency": load / reserved}
        if self.allocator == "stalloc":
            ours = stalloc.memory_stats(self.device)
            result |= {"hit_rate": ours["hit_rate"], "pool": ours["pool"]}
        return result

    def _step(
        self,
        model: Decoder,
        optimizer: torch.optim.Optimizer,
        length: int,
        vocabulary: int,
        step: int,
    ) -> None:
        generator = torch.Generator().manual_seed(step)
        gpu = self.device.startswith("cuda")
        for _ in range(self.microbatches):
            tokens = torch.randint(vocabulary, (self.batch, length + 1), generator=generator)
            with torch.autocast("cuda", torch.bfloat16) if gpu else nullcontext():
                loss = model(tokens.to(self.device))
            loss.backward()
        self.losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()

    @staticmethod
    def _digest(model: Decoder) -> str:
        digest = hashlib.sha256()
        for p in model.parameters():
            digest.update(p.detach().cpu().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()
