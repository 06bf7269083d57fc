"""Measures the memory of captured CUDA graphs: torch's private pools, one pool for all, stalloc.

    make bench-cuda

On the pretended GPU (tests/standin). Each measurement has a process of its own. The load is what
the graphs need at least, replayed in any order: what lives on after each capture, and beside it the
most that one of them needs while it runs. The bound is what any placement needs: a graph of the
backward pass requests the first gradients before it frees activations, so both have places that are
no other graph's. Prints a table; with `--output NAME` writes NAME.json.

One pool for all graphs is right only where they are replayed in the order of their captures, and
where no result is read later.

A second table has programs whose eager parts run between replays: an evaluation, a prefill. Their
figures are of the whole device, with parameters and inputs. The load is what lives in the end, and
beside it the most that a graph or an eager part needs at once, but for each other.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import comparison
import torch
from comparison import last_change
from torch import Tensor, nn

import stalloc

LAYERS, WIDTH, LENGTH, VOCABULARY = 24, 1024, 1024, 32000
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
MICROBATCHES = 4
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
WAYS: dict[str, dict[str, str]] = {
    "torch": {},
    "torch, expandable segments": EXPANDABLE,
    "torch, one pool": {},
    "torch, one pool, expandable segments": EXPANDABLE,
    "stalloc": {},
}


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The layer's result, of the shape of `x`."""
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, 16, -1)).transpose(1, 3)
        y = nn.functional.scaled_dot_product_attention(*heads.unbind(2), is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class Captures:
    """The memory that each capture needs: at most while it runs, and what lives on.

    With `follows`, torch's memory history is on during captures, and tells the bound.
    """

    def __init__(self, follows: bool) -> None:
        self.peaks: list[tuple[int, int]] = []
        self.traces: dict[Any, list[list[dict[str, Any]]]] = {}  # by private pool
        graph: Any = torch.cuda.CUDAGraph
        begin, end = graph.capture_begin, graph.capture_end
        history: Any = torch.cuda.memory._record_memory_history
        before = 0

        def begun(this: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal before
            if follows:
                history("all", context=None, clear_history=True)
            begin(this, *args, **kwargs)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()

        def ended(this: Any, *args: Any, **kwargs: Any) -> None:
            peak, after = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
            # A graph of the backward frees what that of the forward has left for it.
            self.peaks.append((peak - before, max(0, after - before)))
            end(this, *args, **kwargs)
            if follows:
                trace = torch.cuda.memory._snapshot()["device_traces"][0]
                self.traces.setdefault(this.pool(), []).append(trace)
                history(None)

        graph.capture_begin, graph.capture_end = begun, ended

    @property
    def load(self) -> int:
        """Bytes that all graphs need, one running at a time."""
        return sum(kept for _, kept in self.peaks) + max(most - kept for most, kept in self.peaks)

    @property
    def bound(self) -> int:
        """Bytes that any placement needs for graphs that are replayed in any order."""
        own, rest = 0, 0
        for traces in self.traces.values():
            lasting, most = _peaks(traces)
            own += lasting
            rest = max(rest, most - lasting)
        return own + rest


def _peaks(traces: list[list[dict[str, Any]]]) -> tuple[int, int]:
    """The most that lives at once in a pool: of what lives on after a capture, and of all."""
    begun: dict[int, tuple[int, int]] = {}  # by address: number of the request, and bytes
    changes: list[tuple[int, int]] = []  # the same, negative for a free
    lasts: set[int] = set()  # requests
    for trace in traces:
        for entry in trace:
            if entry["action"] == "alloc":
                begun[entry["addr"]] = (len(changes), entry["size"])
                changes.append(begun[entry["addr"]])
            elif entry["action"] == "free_completed" and entry["addr"] in begun:
                number, size = begun.pop(entry["addr"])
                changes.append((number, -size))
        lasts |= {number for number, _ in begun.values()}
    lasting = most = now = now_lasting = 0
    for number, change in changes:
        now += change
        now_lasting += change if number in lasts else 0
        most, lasting = max(most, now), max(lasting, now_lasting)
    return lasting, most


def layers(pool: Any) -> Any:
    """A graph of the forward and one of the backward for each layer."""
    x = torch.randn(8, LENGTH, WIDTH, device="cuda", requires_grad=True)
    given = {} if pool is None else {"pool": pool}
    return [
        torch.cuda.make_graphed_callables(Block().cuda(), (x.detach().requires_grad_(),), **given)
        for _ in range(LAYERS)
    ]


def whole(pool: Any) -> Any:
    """The same by one call: all forward passes are captured first, and the backward in reverse."""
    x = torch.randn(8, LENGTH, WIDTH, device="cuda", requires_grad=True)
    given = {} if pool is None else {"pool": pool}
    blocks = tuple(Block().cuda() for _ in range(LAYERS))
    inputs = tuple((x.detach().requires_grad_(),) for _ in blocks)
    return torch.cuda.make_graphed_callables(blocks, inputs, **given)


def batches(pool: Any) -> Any:
    """A graph of inference for each batch size, whose scores are kept."""
    model = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(WIDTH, VOCABULARY)).cuda()
    graphs = []
    with torch.no_grad():
        for rows in BATCHES:
            x = torch.randn(rows, 128, WIDTH, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                scores = model(x)[:, -1].clone()
            graphs.append((graph, x, scores))
    return model, graphs


def iteration(pool: Any) -> Any:
    """One graph of a whole iteration of several microbatches, and one for the last, short batch."""
    model = nn.Sequential(*(Block() for _ in range(6))).cuda()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    graphs = []
    for rows in (8, 5):
        x = torch.randn(rows, LENGTH, WIDTH, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            for _ in range(MICROBATCHES):
                loss = model(x).square().mean()
                loss.backward()
        graphs.append((graph, x, loss))
    return model, graphs


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "24 layers, forward and backward": layers,
    "24 layers, all by one call": whole,
    "8 batch sizes for inference": batches,
    "an iteration of 4 microbatches, 2 batch sizes": iteration,
}


class Eager:
    """The most that eager parts of a program need at once."""

    def __init__(self) -> None:
        self.most = 0

    def __enter__(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()

    def __exit__(self, *error: object) -> None:
        self.most = max(self.most, torch.cuda.max_memory_allocated() - self._before)


def evaluation(eager: Eager) -> Any:
    """A graph of a whole iteration, and an evaluation without gradients every 10 iterations."""
    model = nn.Sequential(*(Block() for _ in range(6)), nn.Linear(WIDTH, VOCABULARY)).cuda()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, LENGTH, WIDTH, device="cuda")
    target = torch.zeros(8 * LENGTH, dtype=torch.int64, device="cuda")

    def loss_of(inputs: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(inputs).flatten(0, 1), target)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = loss_of(x)
        loss.backward()
        optimizer.step()
    for iteration in range(1, 31):
        graph.replay()
        if iteration % 10 == 0:
            with eager, torch.no_grad():
                for _ in range(4):
                    loss_of(torch.randn(8, LENGTH, WIDTH, device="cuda"))
    return model, graph, x, loss


def prefill(eager: Eager) -> Any:
    """Graphs that decode for up to 128 sequences; before each 16 replays, 8 prompts are read."""
    model = nn.Sequential(*(Block() for _ in range(12)), nn.Linear(WIDTH, VOCABULARY)).cuda()
    graphs = []
    with torch.no_grad():
        for rows in BATCHES:
            x = torch.randn(rows, 64, WIDTH, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                tokens = model(x)[:, -1].argmax(-1)
            graphs.append((graph, x, tokens))
        for request in range(24):
            with eager:
                prompt = torch.randn(8, 512, WIDTH, device="cuda")
                model(prompt)[:, -1].argmax(-1)
                del prompt
            for _ in range(16):
                graphs[request % len(graphs)][0].replay()
    return model, graphs


EAGER_PROGRAMS: dict[str, Callable[[Eager], Any]] = {
    "a graphed iteration, evaluation every 10": evaluation,
    "8 batch sizes to decode, an eager prefill": prefill,
}
EAGER_WAYS: dict[str, dict[str, str]] = {
    "torch": {},
    "torch, expandable segments": EXPANDABLE,
    "stalloc": {},
    "stalloc, eager=True": {},
}


def measure_eager(program: str, way: str) -> dict[str, int]:
    """The load, and what the device holds in the end and at most."""
    captures, eager = Captures(follows=False), Eager()
    torch.cuda.init()
    if way.startswith("stalloc"):
        stalloc.share_graphs(eager="eager" in way)
    kept = EAGER_PROGRAMS[program](eager)
    free, total = torch.cuda.mem_get_info()
    temporaries = max(most - kept for most, kept in captures.peaks)
    load = torch.cuda.memory_allocated() + max(temporaries, eager.most)
    del kept
    return {
        "graphs": len(captures.peaks),
        "temporaries": temporaries,
        "eager": eager.most,
        "load": load,
        "held": total - free,
    }


def measure(program: str, way: str) -> dict[str, int]:
    """The load of the graphs, and what the device holds for them."""
    captures = Captures(follows=way == "torch")
    if way == "stalloc":
        stalloc.share_graphs()
    pool = torch.cuda.graph_pool_handle() if "one pool" in way else None
    kept = PROGRAMS[program](pool)
    torch.cuda.empty_cache()
    if way == "stalloc":
        reserved = stalloc.graph_memory().reserved
    else:
        segments: Any = torch.cuda.memory_snapshot()
        reserved = sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0))
    del kept
    bound = {"bound": captures.bound} if way == "torch" else {}
    return {"graphs": len(captures.peaks), "load": captures.load, **bound, "reserved": reserved}


def measure_all_eager() -> list[dict[str, Any]]:
    """Measures and prints the programs with eager parts."""
    rows = []
    print(
        f"\n{'program':<48}{'memory':<38}{'temporaries':>16}{'eager':>16}{'load':>16}{'held':>16}"
        f"{'of the load':>13}"
    )
    for program in EAGER_PROGRAMS:
        for way, environment in EAGER_WAYS.items():
            output = comparison.in_a_process(__file__, "--measure", program, way, **environment)
            row = {"program": program, "memory": way, **json.loads(output.splitlines()[-1])}
            rows.append(row)
            print(
                f"{program:<48}{way:<38}{row['temporaries']:>16,}{row['eager']:>16,}"
                f"{row['load']:>16,}{row['held']:>16,}{row['held'] / row['load']:>13.3f}"
            )
    return rows


def main() -> None:
    """Measures, prints, and writes with `--output NAME`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write NAME.json")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        does = measure_eager if args.measure[0] in EAGER_PROGRAMS else measure
        print(json.dumps(does(*args.measure)), flush=True)
        os._exit(0)  # torch aborts where autograd's worker still holds Python's (pytorch#173568)
    rows = []
    print(
        f"{'program':<48}{'memory':<38}{'graphs':>7}{'load':>16}{'bound':>16}{'reserved':>16}"
        f"{'of the load':>13}"
    )
    for program in PROGRAMS:
        for way, environment in WAYS.items():
            output = comparison.in_a_process(__file__, "--measure", program, way, **environment)
            measured = json.loads(output.splitlines()[-1])
            bound = measured.get("bound", rows[-1]["bound"] if rows else 0)
            row = {"program": program, "memory": way, "bound": bound, **measured}
            rows.append(row)
            print(
                f"{program:<48}{way:<38}{row['graphs']:>7}{row['load']:>16,}{row['bound']:>16,}"
                f"{row['reserved']:>16,}{row['reserved'] / row['load']:>13.3f}"
            )
    eager_rows = measure_all_eager()
    if args.output:
        document = {
            "device": "pretended (tests/standin)",
            "torch": torch.__version__,
            "commit": last_change("csrc", "stalloc", "benchmarks/cuda"),
            "results": rows,
            "eager": eager_rows,
        }
        args.output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
