"""The documentation's pages: their lines, in a script, launched by their commands, serve a run.

The commands are taken from the pages as they are, but for the number of ranks and the folders. The
pages whose frameworks need a GPU to be launched at all are not among these.

The run that profiles is served nothing: what is trained under the plan has to come out the same.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from launcher import SECONDS
from packages import folders

import stalloc
from stalloc.options import Options

HERE = Path(__file__).parent
PAGES = HERE.parents[1] / "docs" / "frameworks"
RANKS = 2
STEPS = 12
LEAST_HITS = 0.99  # of static requests
# It drops a buffer as soon as that is reduced: at times the thread of gloo that did the work holds
# it last, and frees it when something else was to have its place. The page's runs wait for that
# thread (see gloo.py); one more does not, and nothing else may be amiss in it.
FREED_LATE = "deepspeed"

# The beginning and the end of each script.
HEAD = """
import argparse, json, os, sys
from pathlib import Path
import torch
import stalloc
from gloo import settled
from trainers import Run, loss_of, network, prepare, tokens
prepare()
torch.manual_seed(0)
parser = argparse.ArgumentParser()
rank = int(os.environ["RANK"])
"""
TAIL = """
result = {"stats": stalloc.memory_stats(), "weights": Run().keep(model).weights}
Path(f"rank{rank}.json").write_text(json.dumps(result))
"""

# Lines that begin with `+` are those of the page.
SCRIPTS = {
    "transformers": """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
+from stalloc.integrations.transformers import StallocCallback
callbacks = []
+callbacks=[StallocCallback()]
parser.add_argument("--per_device_train_batch_size", type=int)
parser.add_argument("--gradient_accumulation_steps", type=int)
arguments = TrainingArguments(
    "output", max_steps=STEPS, use_cpu=True, ddp_backend="gloo", save_strategy="no", report_to=[],
    **vars(parser.parse_args()))
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=32))
data = [{"input_ids": row, "labels": row} for row in tokens(1024)]
Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks).train()
""",
    "lightning": """
import lightning.pytorch as pl
+from stalloc.integrations.lightning import StallocCallback
callbacks = []
+callbacks=[StallocCallback()]
parser.add_argument("--trainer.devices", type=int)
parser.add_argument("--trainer.strategy")
arguments = {k.partition(".")[2]: v for k, v in vars(parser.parse_args()).items()}
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()
    def training_step(self, batch, index):
        return loss_of(self.network, batch)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.network.parameters())
trainer = pl.Trainer(
    max_steps=STEPS, accelerator="cpu", callbacks=callbacks, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, **arguments)
model = Module()
trainer.fit(model, torch.utils.data.DataLoader(tokens(), 4))
""",
    "accelerate": """
from accelerate import Accelerator
parser.parse_args()
model = network()
accelerator = Accelerator(cpu=True)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(tokens(STEPS * 8), 4)
+import stalloc.integrations.accelerate
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
+stalloc.integrations.accelerate.install(accelerator)
for batch in loader:
    accelerator.backward(loss_of(model, batch))
    optimizer.step()
    optimizer.zero_grad()
""",
    "deepspeed": """
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
# Else it compiles a kernel for its own all-reduce, for minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
parser = deepspeed.add_config_arguments(parser)
arguments = parser.parse_args()
Path("ds.json").write_text(json.dumps({
    "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}))
deepspeed.init_distributed("gloo")
model = network()
+import stalloc.integrations.deepspeed
engine, *_ = deepspeed.initialize(
    args=arguments, model=model, optimizer=torch.optim.AdamW(model.parameters()))
+stalloc.integrations.deepspeed.install(engine)
for batch in tokens(STEPS * 4).split(4):
    engine.backward(loss_of(engine, batch))
    engine.step()
""",
    "pipelining": """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy
parser.parse_args()
torch.distributed.init_process_group("gloo")
net = network(2)
model = net[:2] if rank == 0 else net[2:]
stage = PipelineStage(model, rank, 2, torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters())
+import stalloc.integrations.pipelining
schedule = Schedule1F1B(stage, 4, lambda x, y: cross_entropy(x.flatten(0, 1), y.flatten()))
+stalloc.integrations.pipelining.install(schedule)
for batch in tokens(STEPS * 8).split(8):
    if rank == 0:
        schedule.step(batch[:, :-1])
    else:
        schedule.step(target=batch[:, 1:].contiguous())
    optimizer.step()
    optimizer.zero_grad()
""",
}


@dataclass
class Rank:
    """The result of one."""

    stats: stalloc.MemoryStats
    weights: str


def write(page: str, folder: Path, changed: bool, waits: bool) -> None:
    """The script, with the lines of the page or without."""
    lines = SCRIPTS[page].replace("STEPS", str(STEPS)).splitlines()
    lines = [line.removeprefix("+") for line in lines if changed or not line.startswith("+")]
    body = "\n".join(lines)
    if waits:
        body = "with settled():\n" + textwrap.indent(body, "    ")
    (folder / "train.py").write_text(HEAD + body + TAIL)


def launch(command: str, folder: Path, plans: Path) -> list[Rank]:
    """The results of the ranks of a job that a command of a page launches."""
    words = shlex.split(re.sub(r"(nproc-per-node|devices) 8", rf"\1 {RANKS}", command))
    mode = words.pop(0).partition("=")
    assert mode[0] == "STALLOC_MODE"
    assert words.pop(0) == "torchrun"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    environment = os.environ | {
        "STALLOC_MODE": mode[2],
        "STALLOC_DIR": str(plans),
        "PYTHONPATH": os.pathsep.join(
            [str(HERE), str(HERE.parent / "python"), *folders("trainers")]
        ),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    job = subprocess.run(
        [sys.executable, *torchrun, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    texts = [(folder / f"rank{rank}.json").read_text() for rank in range(RANKS)]
    return [Rank(**json.loads(text)) for text in texts]


@pytest.mark.parametrize("page", SCRIPTS)
def test_the_commands_of_a_page_serve_a_script_with_its_lines(page: str, tmp_path: Path) -> None:
    text = (PAGES / f"{page}.md").read_text()
    for line in SCRIPTS[page].splitlines():
        assert not line.startswith("+") or line[1:] in text
    commands = re.findall(r"^STALLOC_MODE=.*", text, re.MULTILINE)
    modes = [command.split()[0].partition("=")[2] for command in commands]
    assert modes in (["profile", "plan", "plan"], ["profile", "plan"])
    runs = [(command, page == FREED_LATE) for command in commands]
    if page == FREED_LATE:
        runs.append((commands[1], False))
    plans = tmp_path / "plans"
    unplanned: list[str] = []
    for number, (command, waits) in enumerate(runs):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(page, folder, "-m stalloc.integrations" not in command, waits)
        ranks = launch(command, folder, plans)
        assert len(list(plans.glob("*.plan.json"))) == RANKS
        weights = [rank.weights for rank in ranks]
        if number == 0:
            unplanned = weights
            continue
        assert weights == unplanned
        for rank in ranks:
            stats = rank.stats
            late = stats["conflicts"] if page == FREED_LATE and not waits else 0
            assert stats["iterations"] >= STEPS - Options.serve_from - 1
            assert stats["hits"] + late >= LEAST_HITS * (stats["hits"] + stats["misses"]), stats
