"""One training run on one device, under one allocator: what a process of the benchmark does."""

from __future__ import annotations

import hashlib
import os
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from extras import EXTRAS, release_pool_for_a_while
from models import MODELS, Decoder
from snapshots import recorded_history
from torch.nn.attention import SDPBackend, sdpa_kernel

import stalloc

# torch's own: when cuDNN's is taken, and what memory it wants, differs from version to version.
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Messages of CUDA's libraries, which need memory besides torch and stalloc.
OUT_OF_MEMORY = ("out of memory", "cannot be reserved", "tried to allocate", "alloc_failed")
GIB = 1 << 30
MEASURED = 1000  # the first step that is measured; those before warm up
SHORTEST = 4  # sequences of changing lengths have from a quarter of the model's to all of it


@dataclass
class Run:
    """The training and its settings.

    Under "stalloc" a run is served from a plan that another run has left, from the making of the
    model on. Under "auto" it plans itself. A run that is profiled measures nothing.
    """

    model: str
    allocator: str  # "torch", "expandable" (by the environment), "stalloc", "auto"
    plan: str = ""  # a file: the plan that stalloc serves from
    profile: str = ""  # a file: where to leave such a plan, instead of measuring
    snapshot: str = ""  # a file: where to leave torch's memory snapshot of the steps
    device: str = "cuda"
    batch: int = 8
    microbatches: int = 4
    steps: int = 20
    warmup: int = 6
    memory: float = 0.0  # of the GPU, in GiB, as if it had no more; 0: all
    streams: str = "auto"  # of the plan: or "separate", "ordered"
    extras: str = ""  # names of EXTRAS, with commas
    lengths: bool = False  # every step has sequences of another length
    growing: bool = False  # sequences grow, to the model's length beyond what a profile has seen
    recompute: bool = False
    deterministic: bool = False
    compat: bool = False  # stalloc's other mode
    compiled: bool = False  # by torch.compile
    sharded: bool = False  # by FSDP2, on one rank
    fused: bool = False  # the optimizer
    release: bool = False  # the pool, between steps
    cached: bool = False  # profile through torch's cache, where cudaMalloc takes too long
    losses: list[float] = field(default_factory=list)

    def train(self) -> dict[str, Any]:
        """Trains, and returns what was measured; "out_of_memory" says where memory ran out."""
        torch.manual_seed(0)
        if self.deterministic:
            torch.use_deterministic_algorithms(True)
        if self.compat and self.allocator == "stalloc":
            stalloc.install_compat()
        if self.memory:
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(self.memory * GIB / total, 1.0))
        try:
            if self.profile:
                return self._profile()
            if self.allocator == "stalloc":
                plan = stalloc.Plan.load(self.plan)
                stalloc.enable(plan, startup=True, keep_addresses=self.release or None)
            elif self.allocator == "auto":
                stalloc.auto(device=self.device)
            model, optimizer = self.make()
            for step in range(self.warmup):
                self.step(model, optimizer, step)
            return self._measure(model, optimizer)
        except (RuntimeError, stalloc.OutOfMemory) as error:
            said = str(error).splitlines()[0]
            if not any(text in said.lower() for text in OUT_OF_MEMORY):
                raise
            return {"out_of_memory": said}
        finally:
            stalloc.disable()
            if self.sharded:
                torch.distributed.destroy_process_group()

    def make(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """The model and its optimizer, on the device."""
        with torch.device(self.device):
            model: torch.nn.Module = Decoder(MODELS[self.model], self.recompute)
        if self.sharded:
            _shard(model)
        fused = {"fused": True} if self.fused else {}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused)
        if self.compiled:
            model = torch.compile(model)  # type: ignore[assignment]
        return model, optimizer

    @property
    def profiled(self) -> int:
        """Steps of a profile."""
        return 5 if self.lengths or self.growing else 3

    def _profile(self) -> dict[str, Any]:
        with stalloc.profile(device=self.device, exact=not self.cached) as prof:
            model, optimizer = self.make()
            for step in range(self.profiled):
                self.step(model, optimizer, step)
        plan = prof.plan(streams=self.streams)
        plan.save(self.profile, overwrite=True)
        return {"pool": plan.pool, "resident": plan.resident, "gap": plan.gap}

    def _measure(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        gpu = self.device.startswith("cuda")
        allocations = _device_allocations() if gpu else 0
        with recorded_history(self.snapshot):
            for step in range(self.steps):
                self.step(model, optimizer, MEASURED + step)
            if gpu:
                torch.cuda.synchronize()
        result: dict[str, Any] = {"losses": self.losses}
        if self.deterministic:
            result["weights"] = self._digest(model)
        if gpu:
            stats = torch.cuda.memory_stats()
            load, reserved = (
                stats["requested_bytes.all.peak"],
                stats["reserved_bytes.all.peak"],
            )
            result |= {
                "load": load,
                "peak_reserved": reserved,
                "efficiency": load / reserved,
                "device_allocations": _device_allocations() - allocations,
                "retries": stats.get("num_alloc_retries", 0),
            }
        if self.allocator == "stalloc":
            ours = stalloc.memory_stats(self.device)
            keys = ("hit_rate", "misses", "conflicts", "pool", "resident", "stream_waits", "moves")
            result |= {key: ours[key] for key in keys}
        elif self.allocator == "auto":
            status = stalloc.status()
            keys = ("stage", "reason", "served", "requests", "served_as_planned", "changes")
            result |= {key: status[key] for key in keys}
        return result

    def step(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """One iteration; `step` seeds its data."""
        self._train(model, optimizer, step)
        for name in filter(None, self.extras.split(",")):
            for extra in EXTRAS[name]:
                self.losses += extra(step)
        stalloc.step()
        if self.release and step > 0:
            release_pool_for_a_while()

    def _train(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        config = MODELS[self.model]
        generator = torch.Generator().manual_seed(step)
        gpu = self.device.startswith("cuda")
        for _ in range(self.microbatches):
            length = self._length(step, config.sequence, generator)
            shape = (self.batch, length + 1)
            tokens = torch.randint(config.vocabulary, shape, generator=generator)
            # Backward, too: recomputation has to choose the same kernel.
            with sdpa_kernel(ATTENTION) if gpu else nullcontext():
                with torch.autocast("cuda", torch.bfloat16) if gpu else nullcontext():
                    loss = model(tokens.to(self.device))
                loss.backward()
        self.losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()

    def _length(self, step: int, longest: int, generator: torch.Generator) -> int:
        """Tokens of a sequence in a step; those that are measured begin at MEASURED."""
        shortest = longest // SHORTEST
        if self.lengths:
            return int(torch.randint(shortest, longest + 1, (), generator=generator))
        if self.growing:
            done = step % MEASURED + (self.warmup if step >= MEASURED else 0)
            share = min(1.0, done / (self.warmup + self.steps - 1))
            return shortest + int(share * (longest - shortest))
        return longest

    @staticmethod
    def _digest(model: torch.nn.Module) -> str:
        digest = hashlib.sha256()
        for p in model.parameters():
            whole = p.full_tensor() if hasattr(p, "full_tensor") else p  # of a sharded model
            digest.update(whole.detach().cpu().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def _device_allocations() -> int:
    """The calls of cudaMalloc and of cuMemCreate that torch has made."""
    return int(torch.cuda.memory_stats().get("num_device_alloc", 0))


def _shard(model: torch.nn.Module) -> None:
    """Shards each block and the model over a group of one process."""
    from torch.distributed.fsdp import fully_shard

    if not torch.distributed.is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        torch.distributed.init_process_group(
            "nccl", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
