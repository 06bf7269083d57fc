"""`stalloc.estimate` and `stalloc fits`: what a run needs of a GPU that is not there."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from documented import documented_keys
from fits_scripts import IMAGES, LANGUAGE
from isolation import isolated
from processes import python
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import stalloc
from stalloc import _core, liveness
from stalloc._estimate.cards import card_of
from stalloc.errors import StallocError

WORKSPACE = 8519680
"""Bytes that torch requests for cuBLAS before Hopper, for each thread."""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(4, 32, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(4, 32, 64))
        return x + self.mlp(x)


Step = Callable[[], None]


def training(device: str, make: Callable[[], nn.Module] = Attention, late: bool = True) -> Step:
    """One iteration of a model that is built on the host or on the device."""
    if late:
        model = make().to(device)
    else:
        with torch.device(device):
            model = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> None:
        model(torch.zeros(4, 32, 64, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def profiled() -> stalloc.Trace:
    with stalloc.profile(device="meta") as prof:
        step = training("meta", late=False)
        for _ in range(3):
            step()
            prof.step()
    return prof.trace


def last_iteration(trace: stalloc.Trace) -> Counter[int]:
    begin, end = trace.iterations[-2:]
    inside = (trace.requests.lower >= begin) & (trace.requests.lower < end)
    return Counter(size for size in trace.requests.size[inside].tolist() if size > 32)


@isolated
def test_requests_are_those_of_a_profile_on_the_meta_device() -> None:
    estimate = stalloc.estimate(partial(training, "cuda"), gpu="RTX 3060")
    trace = profiled()
    # A GPU adds two gradients of a tensor in place, a profile on meta makes a new one.
    sums = Counter({4 * 32 * 64 * 4: 1})
    assert last_iteration(estimate.trace) == last_iteration(trace) - sums
    load = int(liveness.of_trace(trace, whole=True).live.max())
    assert abs(estimate.load - 2 * WORKSPACE - load) <= 32
    assert estimate.fits


@isolated
def test_parts_are_the_load() -> None:
    estimate = stalloc.estimate(partial(training, "cuda"), gpu="RTX 3060")
    weights = sum(p.numel() * 4 for p in Attention().parameters())
    assert sum(estimate.parts.values()) == estimate.load
    assert estimate.parts["cuBLAS workspaces"] == 2 * WORKSPACE
    assert estimate.parts["weights and buffers"] == weights
    assert estimate.parts["optimizer states"] == 2 * weights
    assert {need.allocator for need in estimate.needs} == {
        "torch",
        "torch, expandable segments",
        "stalloc",
    }
    for need in estimate.needs:
        assert estimate.load <= need.reserved < need.low < need.high
    assert estimate.plan is not None
    assert json.loads(json.dumps(estimate.to_json()))["load"] == estimate.load


@isolated
def test_models_of_any_size_are_built_without_memory() -> None:
    def build() -> Step:
        model = nn.Linear(200_000, 200_000, bias=False).bfloat16().cuda()

        def step() -> None:
            model(torch.zeros(1, 200_000, device="cuda", dtype=torch.bfloat16)).sum().backward()
            model.zero_grad()

        return step

    estimate = stalloc.estimate(build, gpu="A100")
    weights = 200_000**2 * 2
    assert estimate.load > 2 * weights > 80 << 30
    assert estimate.fits is False
    assert [need.verdict for need in estimate.needs] == ["does not fit"] * 3


@isolated
def test_the_programs_own_meta_tensors_need_no_gpu() -> None:
    def build() -> Step:
        with torch.device("meta"):
            model = nn.Linear(1000, 1000, bias=False)
        kept = model.weight * 2
        model.to_empty(device="cuda")

        def step() -> None:
            model(torch.zeros(2, 1000, device="cuda")).sum().backward()
            model.zero_grad()
            assert kept.is_meta

        return step

    estimate = stalloc.estimate(build, plan=False)
    assert estimate.parts["weights and buffers"] == 4_000_000


@isolated
def test_tied_weights_stay_tied_and_optimizers_keep_them() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
            self.head.weight = self.embedding.weight

    def build() -> Step:
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model.to("cuda")
        assert model.head.weight is model.embedding.weight
        assert optimizer.param_groups[0]["params"] == [model.head.weight]
        assert model.head.weight.is_cuda
        assert model.head.weight.device == torch.device("cuda:0")
        assert copy.deepcopy(model).head.weight.is_cuda

        def step() -> None:
            ids = torch.zeros(4, dtype=torch.int64).cuda()
            model.head(model.embedding(ids)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    assert stalloc.estimate(build).parts["optimizer states"] == 50 * 16 * 4


@isolated
def test_mixed_precision_recomputes_and_scales() -> None:
    types = set()

    def build() -> Step:
        model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8))
        model.cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")

        def step() -> None:
            x = torch.randn(16, 32).to("cuda", non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                result = checkpoint(model, x, use_reentrant=False)
                types.add(result.dtype)
                loss = nn.functional.cross_entropy(result, torch.zeros(16, 8, device="cuda"))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        return step

    estimate = stalloc.estimate(build, gpu="T4")
    assert types == {torch.float16}
    assert estimate.parts["optimizer states"] > 0  # no step was skipped for infinities
    assert not estimate.guesses


@isolated
def test_values_that_are_read_are_guessed_and_listed() -> None:
    seen: list[object] = []

    def build() -> Step:
        model = nn.Linear(8, 8).cuda()

        def step() -> None:
            labels = torch.tensor([3, 5, 7], device="cuda")
            loss = model(torch.zeros(4, 8, device="cuda")).mean()
            loss.backward()
            loss = loss.detach()
            seen.extend(
                [
                    labels.tolist(),
                    labels.max().item(),
                    loss.item(),
                    bool(torch.isnan(loss)),
                    bool(torch.isfinite(loss).all()),
                    loss.cpu().numpy().tolist(),
                    f"{loss:.2f}",
                    labels[labels > 3].shape[0],
                ]
            )

        return step

    estimate = stalloc.estimate(build, iterations=2)
    assert seen[:8] == [[3, 5, 7], 1, 1.0, False, True, 1.0, "1.00", 3]
    lines = {guess.line for guess in estimate.guesses}
    assert all(line.startswith("test_fits.py:") for line in lines)
    assert ("the number of elements that a mask selects", "3") in {
        (guess.read, guess.value) for guess in estimate.guesses
    }


def perceptron(batch: int) -> Step:
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.zeros(batch, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@isolated
def test_largest_batch_is_found_without_running_it() -> None:
    found = stalloc.largest(perceptron, (64, 128, 192), gpu="2GiB")
    assert found.estimate.fits
    assert found.proven == 1
    assert found.recorded == (64, 128, 192, found.value)  # only the answer itself was run
    assert found.predicted < found.estimate.reserved  # the laws leave out the scratch of sums
    # One more would need another block of 2 MiB beyond the limit, or nearly so.
    more = stalloc.estimate(partial(perceptron, found.value + found.value // 100), gpu="2GiB")
    assert not more.fits


def without_sums(batch: int) -> Step:
    model = nn.Linear(256, 1024, bias=False).cuda()

    def step() -> None:
        y = model(torch.zeros(batch, 256, device="cuda"))
        y.backward(torch.zeros_like(y))
        model.zero_grad()
        stalloc.step()

    return step


@isolated
def test_laws_tell_the_memory_of_the_largest_batch() -> None:
    found = stalloc.largest(without_sums, (64, 128, 192), gpu="2GiB")
    assert found.recorded == (64, 128, 192, found.value)
    assert found.predicted == found.estimate.reserved


def summed(batch: int) -> Step:
    """Scratch memory of a sum, which begins at some batch, takes a large part of the memory."""

    def step() -> None:
        for _ in range(2):
            x = torch.zeros(batch, 4096, device="cuda")
            y = x.sum(0)
            del x, y
        stalloc.step()

    return step


@isolated
def test_smaller_batches_are_run_until_the_largest_is_known() -> None:
    found = stalloc.largest(summed, (64, 96, 128), gpu="2GiB")
    assert found.estimate.fits
    beyond = min((n for n in found.recorded if n > found.value), default=found.value + 1)
    assert beyond - found.value <= max(1, found.value // 100)
    assert not stalloc.estimate(partial(summed, beyond), gpu="2GiB").fits


@isolated
def test_largest_batch_may_lie_between_those_that_were_run() -> None:
    found = stalloc.largest(perceptron, (64, 100_000_000), gpu="2GiB")
    direct = stalloc.largest(perceptron, (64, 128, 192), gpu="2GiB")
    assert found.value == direct.value


@isolated
def test_values_that_change_more_than_sizes_have_no_laws() -> None:
    def build(layers: int) -> Step:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers))).cuda()

        def step() -> None:
            model(torch.zeros(8, 64, device="cuda")).sum().backward()
            model.zero_grad()

        return step

    with pytest.raises(StallocError, match="changes more than sizes"):
        stalloc.largest(build, (1, 2, 3), gpu="80GiB")
    with pytest.raises(StallocError, match="does not fit with 64 already"):
        stalloc.largest(perceptron, (64, 128), gpu="100MiB")
    with pytest.raises(ValueError, match="at least two"):
        stalloc.largest(perceptron, (64,), gpu="2GiB")


@isolated
def test_program_may_mark_its_iterations_itself() -> None:
    def marked() -> Step:
        step = training("cuda")

        def both() -> None:
            step()
            stalloc.step()

        return both

    plain = stalloc.estimate(partial(training, "cuda"), plan=False)
    assert stalloc.estimate(marked, plan=False).trace.iterations == plain.trace.iterations


@isolated
def test_convolutions_keep_the_channels_last() -> None:
    seen = []

    def build() -> Step:
        layer = nn.Conv2d(8, 4, 3).cuda()

        def step() -> None:
            images = torch.zeros(2, 8, 9, 9, device="cuda")
            for given in (images, images.contiguous(memory_format=torch.channels_last)):
                result = layer(given)
                result.sum().backward()
                seen.append((tuple(result.shape), result.is_contiguous()))

        return step

    stalloc.estimate(build, iterations=2)
    assert seen[:2] == [((2, 4, 7, 7), True), ((2, 4, 7, 7), False)]


@isolated
def test_gradients_are_added_in_place_as_on_a_gpu() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(1000, 1000), nn.Linear(1000, 1000)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return (x.relu() + x.sigmoid()).sum()  # two gradients of x, both of their own

    def build() -> Step:
        model = Residual().cuda()

        def step() -> None:
            model(torch.zeros(1000, 1000, device="cuda")).backward()
            model.zero_grad()

        return step

    trace = stalloc.estimate(build).trace
    begin, end = trace.iterations[-2:]
    table = trace.requests
    inside = (table.lower >= begin) & (table.lower < end) & (table.size == 4_000_000)
    backward = trace.phases.kind[table.phase_begin] == 2
    # The gradients of relu and sigmoid, and that of the first weight; none for their sum.
    assert int((inside & backward).sum()) == 3


@isolated
def test_a_gradient_is_never_added_to_a_later_one() -> None:
    """The earlier gradient of tied weights is a view of a product, so autograd makes their sum."""

    def build() -> Step:
        embedding = nn.Embedding(1000, 1000).cuda()

        def step() -> None:
            x = embedding(torch.zeros(16, dtype=torch.int64, device="cuda"))
            nn.functional.linear(x, embedding.weight).sum().backward()
            embedding.zero_grad()

        return step

    trace = stalloc.estimate(build, plan=False).trace
    begin, end = trace.iterations[-2:]
    table = trace.requests
    inside = (table.lower >= begin) & (table.lower < end) & (table.size == 4_000_000)
    assert int(inside.sum()) == 3


@isolated
def test_nothing_remains() -> None:
    before = torch.cuda.is_available(), torch.utils.data.DataLoader.__init__, nn.Parameter.__new__
    stalloc.estimate(partial(training, "cuda"))
    after = torch.cuda.is_available(), torch.utils.data.DataLoader.__init__, nn.Parameter.__new__
    assert before == after
    assert type(nn.Linear(2, 2).weight) is nn.Parameter
    assert torch.ones(2).sum().item() == 2
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(2).cuda()
    with stalloc.profile(device="meta") as prof:
        nn.Linear(4, 4, device="meta")(torch.ones(2, 4, device="meta")).sum().backward()
    assert len(prof.trace.requests) > 0


@isolated
def test_an_error_of_the_program_is_its_own() -> None:
    def build() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        stalloc.estimate(build)
    assert not torch.cuda.is_available()
    with pytest.raises(TypeError, match="takes a function"):
        stalloc.estimate(3)  # type: ignore[arg-type]
    with pytest.raises(StallocError, match="at least 2"):
        stalloc.estimate(build, iterations=1)
    with pytest.raises(StallocError, match="put nothing on a GPU"):
        stalloc.estimate(lambda: None)


@pytest.mark.parametrize("source", ["profile", "estimate"])
@isolated
def test_plan_made_without_memory_serves_the_cpu_from_the_first_iteration(source: str) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        widths = [(256, 1024), (1024, 256)] * 3
        return nn.Sequential(*(m for width in widths for m in (nn.Linear(*width), nn.GELU())))

    def losses(model: nn.Module, device: str) -> Callable[[], Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step() -> Tensor:
            batch = torch.linspace(0, 1, 64 * 256, device=device).view(64, 256)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            stalloc.step()
            return loss

        return step

    if source == "estimate":
        plan = stalloc.estimate(lambda: losses(model().cuda(), "cuda")).plan
        assert plan is not None
    else:
        with stalloc.profile(device="meta") as prof, torch.device("meta"):
            step = losses(model(), "meta")
            for _ in range(3):
                step()
        plan = prof.plan()
    step = losses(model(), "cpu")
    expected = [step().item() for _ in range(4)]
    with stalloc.enable(plan, startup=True):
        step = losses(model(), "cpu")
        served = [step().item()]
        first = stalloc.memory_stats()
        served += [step().item() for _ in range(3)]
        last = stalloc.memory_stats()
        _core.runtime("cpu").check()
    assert served == expected
    assert first["startup_requests"] >= 12 * 3  # weights and both states
    for stats in (first, last):
        assert stats["hit_rate"] == 1
        assert stats["hits"] > 15 * stats["misses"]  # numbers, which are left to the CPU
    assert last["hits"] == 4 * first["hits"]
    assert last["peak_fallback_allocated"] == 0


def test_cards_are_found_by_their_names() -> None:
    assert card_of("rtx 3060").memory == 12622168064
    assert card_of("H100").name == "NVIDIA H100 80GB HBM3"
    assert card_of("l4").name == "NVIDIA L4"
    assert card_of("A100").memory < 80 << 30
    assert card_of("79.5GiB").memory == int(79.5 * 2**30)
    with pytest.raises(StallocError, match=r"several cards are called so.*RTX 4090"):
        card_of("RTX")
    with pytest.raises(StallocError, match=r"no such card is known.*RTX 4090"):
        card_of("RTX 9090")


def test_cards_are_found_by_whole_words() -> None:
    assert card_of("A10").name == "NVIDIA A10"
    assert card_of("RTX3060").name == card_of("3060").name == "NVIDIA GeForce RTX 3060"
    assert card_of("H100 80GB").name == "NVIDIA H100 80GB HBM3"
    for text in ("RTX 50", "RTX 509", "H", "GeForce RTX 2"):
        with pytest.raises(StallocError, match="no such card is known"):
            card_of(text)


@pytest.mark.parametrize("text", ["5", "509", "00", "79.5", " 80 "])
def test_a_number_of_bytes_needs_its_unit(text: str) -> None:
    with pytest.raises(StallocError, match=r"a size needs a unit, as in 80GiB"):
        card_of(text)


@pytest.mark.parametrize("text", ["0GiB", "0.0001KiB"])
def test_a_card_has_memory(text: str) -> None:
    with pytest.raises(StallocError, match="a GPU without memory"):
        card_of(text)


def fits(tmp_path: Path, source: str, *options: str, code: int = 0) -> tuple[str, str]:
    script = tmp_path / "train.py"
    script.write_text(source)
    arguments = [options[0], str(script), *options[1:]] if options else [str(script)]
    done = python(
        "-m", "stalloc", "fits", *arguments[0].split(" "), *arguments[1:], cwd=tmp_path, code=code
    )
    return done.stdout, done.stderr


def test_script_for_images_fits_unchanged(tmp_path: Path) -> None:
    output, errors = fits(tmp_path, IMAGES, "--gpu 8GiB")
    assert "fits on 8GiB with torch" in output
    assert " 7.5 GiB |-----" in output  # the limit, far above the curve
    line = 1 + next(n for n, text in enumerate(IMAGES.splitlines()) if "loss.item()" in text)
    assert f"train.py:{line}  a value of a tensor" in output
    assert "0 0 1.000000" in errors
    assert not (tmp_path / "model.pt").exists()


def test_script_for_language_fits_unchanged(tmp_path: Path) -> None:
    output, _ = fits(tmp_path, LANGUAGE, "--gpu H100 --json")
    answer = json.loads(output)
    assert answer["verdict"] == "fits"
    assert answer["iterations"] == 3
    keys = documented_keys()
    assert set(answer) == keys["fits"]
    for name in ("needs", "extras", "guesses"):
        assert all(set(entry) == keys[f"{name}[] of fits"] for entry in answer[name])
    assert set(answer["gpu"]) == keys["gpu of fits"]
    assert max(answer["curve"]) == answer["load"]
    assert answer["limit"] < answer["gpu"]["memory"]
    weights = answer["parts"]["weights and buffers"]
    assert 1.9 * weights < answer["parts"]["optimizer states"] < 2.1 * weights
    assert {"torch.compile", "torch.save"} <= {guess["read"] for guess in answer["guesses"]}


def test_script_that_does_not_fit_ends_with_1(tmp_path: Path) -> None:
    output, _ = fits(tmp_path, IMAGES, "--gpu 400MiB --json", code=1)
    assert json.loads(output)["verdict"] == "may not fit"
    output, _ = fits(tmp_path, IMAGES, "--gpu 240MiB", code=1)
    assert "does not fit on 240MiB with torch" in output


def test_script_is_asked_for_its_largest_batch(tmp_path: Path) -> None:
    source = IMAGES.replace("torch.randn(128,", "torch.zeros(20000,").replace("(128,)", "(20000,)")
    output, _ = fits(tmp_path, source, "--gpu 700MiB --largest=--batch-size=16,32,48 --json")
    answer = json.loads(output)
    found = answer["largest"]
    assert answer["verdict"] == "fits"
    assert found["option"] == "--batch-size"
    assert set(found) == documented_keys()["largest of fits"]
    assert found["recorded"] == [16, 32, 48, found["value"]]
    assert found["predicted"] == answer["needs"][0]["reserved"]
    output, _ = fits(tmp_path, source, "--gpu 700MiB --largest rows --json", "--batch-size", "64")
    same = json.loads(output)["largest"]
    assert same["recorded"] == [32, 48, 64, found["value"]]
    assert (same["option"], same["value"]) == ("--batch-size", found["value"])
    _, errors = fits(tmp_path, source, "--gpu 8GiB --largest=4,8", code=2)
    assert "nor an option with values" in errors
    _, errors = fits(tmp_path, source, "--gpu 8GiB --largest tokens", "--batch-size=4", code=2)
    assert "no argument of the script tells its tokens; give it one" in errors


def test_script_on_the_cpu_has_no_answer(tmp_path: Path) -> None:
    output, errors = fits(tmp_path, IMAGES, "--gpu 8GiB --json", "--no-cuda", code=2)
    assert "it put nothing on a GPU" in errors
    assert json.loads(output)["verdict"] is None
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("open('no such file')", "train.py:3: the script failed here: FileNotFoundError"),
        ("exit('a GPU with NVLink is needed')", "train.py:3: the script ended: a GPU with NVLink"),
        ("import os; os._exit(7)", "train.py:3: the script ended with exit code 7"),
        ("x = = 3", "train.py:3: the script failed here: SyntaxError: invalid syntax"),
        (
            "torch.ones(3, device='cuda') + torch.ones(3)",
            "train.py:3: aten.add.Tensor gets tensors of the GPU and of the host at once",
        ),
        ("undefined", "train.py:3: the script failed here: NameError"),
        (
            "torch.bincount(x.long()).cumsum(0).tolist()",
            "train.py:3: the shape of aten.bincount.default's result depends on values",
        ),
    ],
)
def test_script_that_fails_is_told_its_line(tmp_path: Path, line: str, message: str) -> None:
    _, errors = fits(
        tmp_path, f"import torch\nx = torch.zeros(8).cuda()\n{line}\n", "--gpu 8GiB", code=2
    )
    assert f"stalloc fits: no answer: {message}" in errors
    assert "Traceback" not in errors


def test_script_that_trains_on_the_cpu_until_its_loss_is_small_ends(tmp_path: Path) -> None:
    source = """
import torch
model = torch.nn.Linear(4, 1)
loss = torch.tensor(1.0)
while loss.item() > 1e-3:
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
"""
    _, errors = fits(tmp_path, source, "--gpu 8GiB", code=2)
    assert "train.py:7: it put nothing on a GPU" in errors


@isolated
def test_products_with_a_type_of_their_own_are_products() -> None:
    """Their workspace is requested, and their operations are counted."""

    def build() -> Step:
        bias, x = torch.zeros(64, device="cuda"), torch.zeros(8, 64, device="cuda").bfloat16()
        weight = torch.zeros(64, 64, device="cuda", requires_grad=True)

        def step() -> None:
            torch.addmm(bias, x, weight.detach().bfloat16(), out_dtype=torch.float32)
            weight.sum().backward()
            weight.grad = None

        return step

    estimate = stalloc.estimate(build, gpu="RTX 3060", plan=False)
    assert estimate.parts["cuBLAS workspaces"] == WORKSPACE


@isolated
def test_data_parallel_is_one_gpu() -> None:
    def build() -> Step:
        model = nn.DataParallel(nn.Linear(8, 8)).cuda()

        def step() -> None:
            model(torch.zeros(4, 8)).sum().backward()
            model.zero_grad()

        return step

    assert stalloc.estimate(build, plan=False).iterations == 3


def test_usage_is_explained(tmp_path: Path) -> None:
    _, errors = fits(tmp_path, "", "--gpu A9090", code=2)
    assert "no such card is known" in errors
    _, errors = fits(tmp_path, "", "--gpu 8GiB --iterations 1", code=2)
    assert "--iterations: at least 2 are needed" in errors
    done = python("-m", "stalloc", "fits", "--gpu", "8GiB", "missing.py", cwd=tmp_path, code=2)
    assert "there is no such script" in done.stderr


def test_operators_that_a_gpu_has_a_kernel_for_are_not_composed() -> None:
    """torch without CUDA would compose them on a GPU: _fused_rms_norm, silu_backward."""

    def build() -> Step:
        x = torch.randn(64, 100, device="cuda", requires_grad=True)
        weight = torch.ones(100, device="cuda", requires_grad=True)

        def step() -> None:
            y = nn.functional.silu(nn.functional.rms_norm(x, (100,), weight, 1e-6))
            y.sum().backward()
            x.grad = weight.grad = None

        return step

    estimate = stalloc.estimate(build, iterations=3, plan=False)
    table, (first, last) = estimate.trace.requests, estimate.trace.iterations[-2:]
    inside = (table.lower >= first) & (table.lower < last) & (table.size > 4)
    norm, activation = [64 * 400, 64 * 4], 64 * 400
    assert table.size[inside].tolist() == [*norm, activation, activation, 64 * 400, 400]


def routed_rows(route: Callable[[Tensor, int], list[int]]) -> list[int]:
    """The tokens of each of four experts, of 64 tokens that choose two each."""
    found: list[int] = []

    def build() -> Step:
        router = nn.Linear(16, 4, device="cuda")

        def step() -> None:
            scores = router(torch.randn(64, 16, device="cuda"))
            found[:] = route(scores, 4)
            scores.sum().backward()

        return step

    stalloc.estimate(build, iterations=2, plan=False)
    return found


def test_an_even_router_is_the_guess() -> None:
    def compared(scores: Tensor, experts: int) -> list[int]:
        chosen = scores.softmax(-1).topk(2, dim=-1)[1]
        return [(chosen == i).nonzero(as_tuple=True)[0].numel() for i in range(experts)]

    def one_hot(scores: Tensor, experts: int) -> list[int]:
        chosen = scores.topk(2, dim=-1).indices
        mask = nn.functional.one_hot(chosen, experts).permute(2, 1, 0)
        return [torch.where(mask[i])[0].numel() for i in range(experts)]

    def masked(scores: Tensor, experts: int) -> list[int]:
        chosen = scores.argmax(dim=-1)
        return [scores[chosen == i].shape[0] for i in range(experts)]

    def counted(scores: Tensor, experts: int) -> list[int]:
        chosen = torch.multinomial(scores.softmax(-1), 2).flatten()
        return list(torch.bincount(chosen, minlength=experts).tolist())

    def summed(scores: Tensor, experts: int) -> list[int]:
        chosen = scores.max(dim=-1).indices
        return list(nn.functional.one_hot(chosen, experts).sum(0).cpu().tolist())

    assert routed_rows(compared) == [32] * 4
    assert routed_rows(one_hot) == [32] * 4
    assert routed_rows(masked) == [16] * 4
    assert routed_rows(counted) == [32] * 4
    assert routed_rows(summed) == [16] * 4
