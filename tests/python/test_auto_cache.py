"""The plans that `stalloc.auto` keeps, and the runs that are served from them."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from documented import documented_keys
from hypothesis import given, settings
from hypothesis import strategies as st
from isolation import isolated
from processes import torchrun
from test_auto import settle, train_product, train_step
from test_auto_run import SCRIPT, WAITS, run
from training import Trainer, assert_same, loss_of, profiled_plan, tokens, twins

import stalloc
from stalloc import cli
from stalloc._auto.cache import PlanCache, cache_folder
from stalloc._auto.proposal import Proposal

PROGRAM = {"model": "GPT", "rank": "0 of 1"}


@pytest.fixture(scope="module")
def plan_text() -> bytes:
    _, trainer = twins()
    return profiled_plan(trainer)._core.to_json()


def proposal_of(plan: stalloc.Plan, after: int | None = None) -> Proposal:
    pool = plan.pool
    return Proposal(
        plan,
        load=pool,
        before=2 * pool,
        after=after or pool,
        entering=pool,
        beside=0,
    )


@pytest.fixture
def proposal(plan_text: bytes) -> Proposal:
    plan = stalloc.Plan.from_json(plan_text, "the test's")
    return proposal_of(plan)


def inputs_of(proposal: Proposal) -> str:
    (inputs,) = json.loads(proposal.plan.info["inputs"])
    return str(inputs)


def refuse(problem: str) -> None:
    raise AssertionError(problem)


# The folder


def test_a_kept_plan_is_found_by_program_and_inputs(tmp_path: Path, proposal: Proposal) -> None:
    cache = PlanCache(tmp_path / "new" / "folder")
    assert cache.find(PROGRAM, inputs_of(proposal), refuse) is None
    cache.keep(PROGRAM, proposal)
    found = cache.find(PROGRAM, inputs_of(proposal), refuse)
    assert found is not None
    assert replace(found, plan=proposal.plan) == proposal
    assert found.plan.fingerprint == proposal.plan.fingerprint
    for name in PROGRAM:
        assert cache.find(PROGRAM | {name: "other"}, inputs_of(proposal), refuse) is None
    # The plan would serve a smaller batch, in a pool that is larger than needed.
    for inputs in ("(int64[1,32])", "(int64[2,31])", "(int32[2,32])", "()"):
        assert cache.find(PROGRAM, inputs, refuse) is None


def test_a_batch_of_any_length_is_served_if_lengths_change(tmp_path: Path) -> None:
    _, trainer = twins()
    with stalloc.profile(trainer.model) as prof:
        for length in (32, 24, 28):
            trainer.step(length=length)
    plan = prof.plan()
    PlanCache(tmp_path).keep(PROGRAM, proposal_of(plan))
    cache = PlanCache(tmp_path)
    assert cache.find(PROGRAM, "(int64[2,17])", refuse) is not None
    assert cache.find(PROGRAM, "(int64[3,32])", refuse) is None


def test_the_plans_that_were_not_used_for_longest_go(tmp_path: Path, proposal: Proposal) -> None:
    PlanCache(tmp_path).keep(PROGRAM, proposal)
    (first,) = tmp_path.iterdir()
    cache = PlanCache(tmp_path, most_bytes=3 * first.stat().st_size + 100)
    left = tmp_path / f".stalloc-{'0' * 16}"
    left.write_text("of a process that died")
    written = tmp_path / f".stalloc-{'1' * 16}"
    written.write_bytes(b"x" * 4 * first.stat().st_size)
    other = tmp_path / "notes.txt"
    other.write_bytes(b"x" * 2 * first.stat().st_size)
    os.utime(left, (0, 0))
    os.utime(other, (0, 0))
    os.utime(first, (1, 1))
    for i in range(2):
        cache.keep(PROGRAM | {"rank": str(i)}, proposal)
        (newest,) = (f.path for f in cache.files()[:1])
        os.utime(newest, (2 + i, 2 + i))
    assert len(cache.files()) == 3
    assert cache.find(PROGRAM, inputs_of(proposal), refuse) is not None, "is the newest by its use"
    cache.keep(PROGRAM | {"rank": "2"}, proposal)
    assert len(cache.files()) == 3
    assert cache.find(PROGRAM, inputs_of(proposal), refuse) is not None
    assert cache.find(PROGRAM | {"rank": "0"}, inputs_of(proposal), refuse) is None
    assert other.exists(), "no file of a plan"
    assert not left.exists()
    assert written.exists(), "another process is about to give it its name"
    PlanCache(tmp_path, most_bytes=100).keep(PROGRAM | {"rank": "3"}, proposal)
    assert len(cache.files()) == 3, "a plan that is too large for the cache is not kept"


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(**variables: str) -> Path | None:
        for name in ("STALLOC_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return cache_folder()

    everything = {"STALLOC_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}
    assert folder(**everything) == Path("/a")
    assert folder(XDG_CACHE_HOME="/b", HOME="/c") == Path("/b/stalloc")
    assert folder(XDG_CACHE_HOME="relative", HOME="/c") == Path("/c/.cache/stalloc")
    assert folder(HOME="/c", STALLOC_CACHE="~/plans") == Path("/c/plans")
    for off in ("0", ""):
        assert folder(**everything | {"STALLOC_CACHE": off}) is None


# Faults


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_damaged_file_is_told_and_deleted(
    data: st.DataObject, plan_text: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan = stalloc.Plan.from_json(plan_text, "the test's")
    proposal = proposal_of(plan)
    cache = PlanCache(tmp_path_factory.mktemp("cache"))
    cache.keep(PROGRAM, proposal)
    (file,) = cache.folder.iterdir()
    text = file.read_bytes()
    cut = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.one_of(st.just(len(text)), st.integers(cut, len(text))))
    damaged = text[:cut] + data.draw(st.binary(max_size=20)) + text[end:]
    file.write_bytes(damaged)
    problems: list[str] = []
    found = cache.find(PROGRAM, inputs_of(proposal), problems.append)
    if found is None and not problems:
        # The inputs are others now.
        assert file.exists()
    elif found is None:
        assert len(problems) == 1
        assert str(file) in problems[0]
        assert not file.exists()
    else:
        found.plan.check()
        assert problems == []
        assert 0 <= found.after < found.before


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_a_file_of_zeros_is_told_and_deleted(size: int, tmp_path: Path, proposal: Proposal) -> None:
    cache = PlanCache(tmp_path)
    cache.keep(PROGRAM, proposal)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"\0" * size)
    problems: list[str] = []
    assert cache.find(PROGRAM, inputs_of(proposal), problems.append) is None
    assert len(problems) == 1
    assert not file.exists()


def test_a_plan_of_another_program_under_the_name_is_not_used(
    tmp_path: Path, proposal: Proposal
) -> None:
    cache = PlanCache(tmp_path)
    cache.keep(PROGRAM, proposal)
    (file,) = tmp_path.iterdir()
    cache.keep(PROGRAM | {"rank": "1 of 2"}, proposal)
    (other,) = (path for path in tmp_path.iterdir() if path != file)
    other.replace(file)
    problems: list[str] = []
    assert cache.find(PROGRAM, inputs_of(proposal), problems.append) is None
    assert "another program" in problems[0]


def test_only_regular_files_are_deleted(tmp_path: Path, proposal: Proposal) -> None:
    cache = PlanCache(tmp_path)
    cache.keep(PROGRAM, proposal)
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    assert cache.find(PROGRAM, inputs_of(proposal), refuse) is None
    assert cache.files() == []


def _race(folder: Path, text: bytes, seed: int) -> None:
    plan = stalloc.Plan.from_json(text, "the test's")
    proposal = proposal_of(plan, after=plan.pool + seed)
    cache = PlanCache(folder, most_bytes=5 * len(text) // 2)
    for i in range(30):
        program = PROGRAM | {"rank": str((seed + i) % 3)}
        cache.keep(program, proposal)
        found = cache.find(program, inputs_of(proposal), refuse)
        assert found is None or 0 <= found.after - plan.pool < 4
    sys.exit(0)


def test_concurrent_processes_read_whole_plans_only(tmp_path: Path, plan_text: bytes) -> None:
    context = multiprocessing.get_context("spawn")
    racers = [context.Process(target=_race, args=(tmp_path, plan_text, i)) for i in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * 4
    names = [path.name for path in tmp_path.iterdir()]
    assert 0 < len(names) <= 3
    assert all(name.endswith(".plan.json") for name in names)


# Runs


def train(trainer: Trainer, steps: int, **options: int) -> stalloc.AutoStatus:
    """Trains with the automatic from the beginning on."""
    with stalloc.auto(time_limit=0.5) as auto:
        for _ in range(steps):
            trainer.step(**options)
            settle(auto)
        return auto.status()


@isolated
def test_the_second_run_is_served_from_its_first_iteration(tmp_path: Path) -> None:
    os.environ["STALLOC_CACHE"] = str(tmp_path)
    plain, first = twins()
    _, second = twins()
    for _ in range(10):
        plain.step()
    assert train(first, 10)["served"] == 3
    (file,) = tmp_path.iterdir()
    os.utime(file, (0, 0))
    status = train(second, 10)
    assert_same(plain, first)
    assert_same(plain, second)
    (change,) = status["changes"]
    assert (change["iteration"], change["reason"]) == (0, "plan of an earlier run")
    assert status["served"] == status["iterations"] == 9
    assert status["served_as_planned"] > 0.9 * status["requests"]
    assert file.stat().st_mtime > 0, "is noted as used"


# torch's segments of 202 MiB are a little larger.
LITTLE_TO_SAVE = 403 << 17
"""Floats."""


@isolated
def test_a_plan_that_is_not_worth_a_change_serves_the_next_run(tmp_path: Path) -> None:
    os.environ["STALLOC_CACHE"] = str(tmp_path)
    first = train_product(LITTLE_TO_SAVE)
    assert (first["stage"], first["changes"]) == ("resting", [])
    second = train_product(LITTLE_TO_SAVE)
    (change,) = second["changes"]
    assert (change["iteration"], change["reason"]) == (0, "plan of an earlier run")
    assert 0.99 * change["before"] < change["after"] < change["before"]
    assert second["stage"] == "serving"


@isolated
def test_a_run_that_departs_from_a_kept_plan_makes_its_own(tmp_path: Path) -> None:
    """Recomputation is not seen in the model's tensors."""
    os.environ["STALLOC_CACHE"] = str(tmp_path)
    first, _ = twins(layers=6)
    plain, second = twins(layers=6, recompute=("non-reentrant",))
    large = train(first, 10)["changes"][0]["pool"]
    for _ in range(20):
        plain.step()
    status = train(second, 20)
    assert_same(plain, second)
    kept, out, own = status["changes"]
    assert kept["iteration"] == 0
    assert "departs from the plan of an earlier run" in out["reason"]
    assert not out["in_force"]
    assert own["in_force"]
    assert own["pool"] < large
    # The next run has this plan.
    _, third = twins(layers=6, recompute=("non-reentrant",))
    (change,) = train(third, 8)["changes"]
    assert change["pool"] == own["pool"]


def train_adversaries(steps: int) -> stalloc.AutoStatus:
    """A generator steps with the first step of its critic, and with each fifth one after that."""
    torch.manual_seed(0)
    inner = [[torch.nn.Linear(64, 64), torch.nn.Tanh()] for _ in range(8)]
    outer = [
        [torch.nn.Linear(64, 96), torch.nn.Sigmoid(), torch.nn.Linear(96, 64)] for _ in range(4)
    ]
    critic = torch.nn.Sequential(*(layer for layers in inner for layer in layers))
    generator = torch.nn.Sequential(*(layer for layers in outer for layer in layers))
    fast, slow = (torch.optim.Adam(model.parameters()) for model in (critic, generator))
    with stalloc.auto() as auto:
        for step in range(steps):
            fast.zero_grad()
            real, fake = torch.rand(512, 64), generator(torch.rand(512, 64)).detach()
            (critic(fake).square().mean() + critic(real).mean()).backward()
            fast.step()
            if step % 5 == 0:
                slow.zero_grad()
                critic(generator(torch.rand(512, 64))).mean().backward()
                slow.step()
            settle(auto)
        return auto.status()


@isolated
def test_a_first_iteration_of_two_parts_is_judged_as_a_whole(tmp_path: Path) -> None:
    os.environ["STALLOC_CACHE"] = str(tmp_path)
    assert train_adversaries(70)["served"] > 0
    status = train_adversaries(70)
    (change,) = status["changes"]
    assert (change["iteration"], change["reason"]) == (0, "plan of an earlier run")


def train_halves(steps: int) -> stalloc.AutoStatus:
    """Trains one half of a model and the other in turn; the rest is frozen."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    optimizers = [torch.optim.SGD(half.parameters(), lr=0.1) for half in (model[:4], model[4:])]
    with stalloc.auto(model, time_limit=0.1) as auto:
        for number in range(steps):
            model[:4].requires_grad_(number % 2 == 0)
            model[4:].requires_grad_(number % 2 == 1)
            train_step(auto, model, torch.ones(512, 256), optimizers[number % 2])
        return auto.status()


@isolated
def test_a_kept_plan_learns_the_models_that_are_trained_in_turn(tmp_path: Path) -> None:
    os.environ["STALLOC_CACHE"] = str(tmp_path)
    assert train_halves(24)["changes"][0]["in_force"]
    (change,) = train_halves(24)["changes"]
    assert (change["iteration"], change["reason"]) == (0, "plan of an earlier run")


class TwoPrograms(torch.nn.Module):
    """One model with the weights of another."""

    def __init__(self, *, is_wide: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(8))
        self.is_wide = is_wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_wide:
            x = torch.cat([x, x, x])
            return sum((layer(x).sigmoid() * x.cos() for layer in self.layers), x)
        for layer in self.layers:
            x = layer(x).relu()
        return x


def train_program(model: torch.nn.Module, steps: int, auto: stalloc.Auto | None) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    batch = torch.linspace(0, 1, 256 * 64).view(256, 64)
    return [train_step(auto, model, batch, optimizer) for _ in range(steps)]


@isolated
def test_a_kept_plan_of_another_program_goes_although_states_lie_in_its_pool(
    tmp_path: Path,
) -> None:
    os.environ["STALLOC_CACHE"] = str(tmp_path)
    with stalloc.auto(time_limit=0.5) as auto:
        train_program(TwoPrograms(is_wide=False), 12, auto)
        assert auto.status()["changes"][0]["in_force"]
    plain = train_program(TwoPrograms(is_wide=True), 16, None)
    with stalloc.auto(time_limit=0.5) as auto:
        assert train_program(TwoPrograms(is_wide=True), 16, auto) == plain
        kept, out, *_ = auto.status()["changes"]
    assert (kept["iteration"], out["iteration"]) == (0, 1)
    assert "departs from the plan of an earlier run" in out["reason"]
    assert not out["in_force"]


def test_a_kept_plan_serves_a_script_as_torch_does(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(WAITS))
    folder = tmp_path / "cache"
    losses, _ = run(script, "12", cwd=tmp_path, plain=True)
    for begin in (6, 0, 6):
        out, said = run("--json", script, "12", cwd=tmp_path, STALLOC_CACHE=str(folder))
        assert out[:-1] == losses
        status = json.loads(out[-1])
        assert [change["iteration"] for change in status["changes"]] == [begin]
        assert len(said) == 2
        if begin == 0:
            script.write_text(script.read_text() + "# is another program now\n")
    # Two ranks are programs of their own.
    for begin in (6, 0):
        ranks = torchrun(
            *("-m", "stalloc", "run", "--json", script, "12"),
            logs=tmp_path / "logs",
            environment={"STALLOC_CACHE": str(folder)},
        )
        for out, _ in ranks:
            (change,) = json.loads(out[-1])["changes"]
            assert change["iteration"] == begin
    assert len(list(folder.glob("*.plan.json"))) == 4


STATES = """
import torch
torch.manual_seed(0)

class Lion(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {{}})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p not in self.state:
                self.state[p] = torch.zeros_like(p)
            state = self.state[p]
            p.sub_(state.mul(0.9).add(p.grad, alpha=0.1).sign() * 1e-3)
            state.mul_(0.99).add_(p.grad, alpha=0.01)

model = torch.nn.Sequential(*[torch.nn.Linear(96, 96) for _ in range(6)])
optimizer = {}
for i in range(48):
    model(torch.randn(64, 96)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    {}
"""


@pytest.mark.parametrize(
    "optimizer",
    [
        "torch.optim.AdamW(model.parameters(), lr=1e-3)",
        "torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=0.1)",
        "Lion(model.parameters())",
    ],
)
def test_the_states_of_the_first_step_take_no_place_of_a_kept_plan(
    optimizer: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(STATES.format(optimizer, WAITS))
    folder = tmp_path / "cache"
    for kept in (False, True, True):
        out, _ = run("--json", script, cwd=tmp_path, STALLOC_CACHE=str(folder))
        status = json.loads(out[-1])
        (change,) = status["changes"]
        assert (change["iteration"] == 0) == kept
        # A displaced temporary would miss its place in each iteration.
        missed = status["requests"] - status["served_as_planned"]
        assert missed < status["iterations"] // 4


def run_twice(text: str, folder: Path) -> None:
    """Runs a script of 48 iterations, then again under the kept plan, which serves nearly all."""
    script = folder / "train.py"
    script.write_text(text)
    for kept in (False, True):
        out, _ = run("--json", script, cwd=folder, STALLOC_CACHE=str(folder / "cache"))
        status = json.loads(out[-1])
        assert (status["changes"][0]["iteration"] == 0) == kept
        missed = status["requests"] - status["served_as_planned"]
        assert missed < status["iterations"] // 4


TABLES = f"""
import torch
torch.manual_seed(0)

class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(96, 96) for _ in range(6))
        self.mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.ones(64, 1).neg()
        for layer in self.layers:
            x = layer(x * self.mask)
            x = x - x.mean(1, keepdim=True)  # as large as the mask
        return x

model = Masked()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(48):
    model(torch.randn(64, 96)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    {WAITS}
"""


def test_a_table_that_the_first_forward_makes_takes_no_place_of_a_kept_plan(tmp_path: Path) -> None:
    # An activation whose place is taken misses it in each iteration.
    run_twice(TABLES, tmp_path)


GRADIENTS = f"""
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(96, 96) for _ in range(6)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for i in range(48):
    optimizer.zero_grad(set_to_none=False)
    model(torch.randn(64, 96)).square().mean().backward()
    optimizer.step()
    {WAITS}
"""


def test_gradients_that_stay_take_no_place_of_a_kept_plan(tmp_path: Path) -> None:
    # The first gradients would take the places of those that later passes add to them.
    run_twice(GRADIENTS, tmp_path)


@isolated
@pytest.mark.parametrize("fault", ["damaged", "no folder", "read-only", "full"])
def test_a_cache_that_fails_costs_a_warning(fault: str, tmp_path: Path) -> None:
    plain, first = twins()
    _, trainer = twins()
    for _ in range(10):
        plain.step()
    os.environ["STALLOC_CACHE"] = str(tmp_path / "cache")
    train(first, 10)
    _fail(fault, tmp_path / "cache")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        status = train(trainer, 10)
    assert_same(plain, trainer)
    assert status["stage"] == "serving"
    (warning,) = (w for w in caught if issubclass(w.category, stalloc.StallocWarning))
    assert "STALLOC_CACHE=0 turns the cache off" in str(warning.message)
    assert os.environ["STALLOC_CACHE"] in str(warning.message)


def _fail(fault: str, folder: Path) -> None:
    (file,) = folder.iterdir()
    if fault == "damaged":
        file.write_bytes(file.read_bytes()[:1000])
        return
    file.unlink()
    if fault == "no folder":
        folder.rmdir()
        folder.write_text("a file")
    elif fault == "read-only":  # also for root
        os.environ["STALLOC_CACHE"] = "/proc/stalloc"
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))


@isolated
@pytest.mark.parametrize("off", ["0", ""])
def test_the_cache_can_be_turned_off(off: str, tmp_path: Path) -> None:
    os.environ["STALLOC_CACHE"] = off
    os.environ["XDG_CACHE_HOME"] = str(tmp_path)
    _, trainer = twins()
    assert train(trainer, 10)["stage"] == "serving"
    assert list(tmp_path.iterdir()) == []


@isolated
def test_autocast_and_the_number_of_threads_make_another_program(tmp_path: Path) -> None:
    os.environ["STALLOC_CACHE"] = str(tmp_path)

    class Cast(Trainer):
        def backward(self, microbatch: int, length: int = 32) -> None:
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(self.model, tokens(self.steps, microbatch, length))
            loss.backward()

    def changes(of: Callable[[torch.nn.Module], Trainer], threads: int = 1) -> list[int]:
        _, twin = twins()
        trainer = of(twin.model)
        torch.set_num_threads(threads)
        return [change["iteration"] for change in train(trainer, 8)["changes"]]

    assert changes(Trainer) == [6]
    assert changes(Cast)[:1] == [6]
    assert changes(Trainer) == changes(Cast) == [0]
    assert changes(Trainer, threads=2) == [6]


# The command


def test_the_command_lists_shows_and_deletes(
    tmp_path: Path,
    proposal: Proposal,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STALLOC_CACHE", str(tmp_path))

    def command(*arguments: str, code: int = 0) -> str:
        assert cli.main(["cache", *arguments]) == code
        return capsys.readouterr().err if code else capsys.readouterr().out

    assert json.loads(command("list", "--json")) == {
        "folder": str(tmp_path),
        "bytes": 0,
        "plans": [],
    }
    cache = PlanCache(tmp_path)
    for i in range(2):
        cache.keep(PROGRAM | {"rank": f"{i} of 2"}, proposal)
    damaged, good = (file.path for file in cache.files())
    damaged.write_text("nonsense")
    shown = command("list")
    assert all(file.path.name in shown for file in cache.files())
    assert "GPT" in shown
    listed = json.loads(command("list", "--json"))
    assert set(listed) == documented_keys()["cache list"]
    by_name = {row["file"]: row for row in listed["plans"]}
    keys = documented_keys()["cache show, and an entry of plans"]
    assert all(set(row) == keys for row in by_name.values())
    assert by_name[good.name]["pool"] == proposal.plan.pool
    assert by_name[good.name]["problem"] is None
    assert "nonsense" not in by_name[damaged.name]
    assert by_name[damaged.name]["problem"]

    assert json.loads(command("show", good.name[:10], "--json")) == by_name[good.name]
    assert inputs_of(proposal) in command("show", good.name)
    assert "no plan has a name" in command("show", "zzz", code=1)
    assert "several plans" in command("show", "", code=1)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["cache", "show"])
    with pytest.raises(SystemExit, match="2"):
        cli.main(["cache", "burn"])

    cleared = json.loads(command("clear", damaged.name, "--json"))
    assert set(cleared) == documented_keys()["cache clear"]
    assert cleared["deleted"] == 1
    (tmp_path / "notes.txt").write_text("of the user")
    assert command("clear") == "1 plans deleted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    monkeypatch.setenv("STALLOC_CACHE", "0")
    assert "the cache is off" in command("list", code=1)
