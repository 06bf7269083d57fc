"""Finds every error message in the sources, for the trouble-shooting page to list.

`source_messages` says what counts as one. Each belongs to a topic, by its words or by the file it
stands in, and the topic says what to do. A file that no topic names is an error here, so that no
message goes without. A topic's messages are listed by their own words, as in a dictionary.

    python scripts/error_messages.py    # prints the page's part
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from source_messages import cpp_messages, python_messages

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Topic:
    """Messages that call for the same.

    Attributes:
        title: The cause.
        advice: The remedy, in Markdown.
        files: Sources of its messages: files, or folders ending in `/`.
        words: Text of its messages, from any file.
    """

    title: str
    advice: str
    files: tuple[str, ...]
    words: tuple[str, ...] = ()


TOPICS = (
    Topic(
        "The memory does not suffice",
        "The device does not have the requested bytes, even after everything cached was given "
        "back. Train with smaller microbatches or more recomputation, free tensors that outlive "
        "their step, or leave other programs less of the device.",
        ("csrc/runtime/figures.cpp",),
        ("tried to allocate", "cannot be reserved"),
    ),
    Topic(
        "stalloc's own bookkeeping is wrong",
        "This is a bug. Please report it, with the trace and the plan.",
        (
            "csrc/runtime/caching_pool.cpp",
            "csrc/runtime/static_pool_check.cpp",
            "csrc/replay/caching_model.cpp",
            "csrc/replay/expandable_segments.cpp",
        ),
    ),
    Topic(
        "The GPU failed, or there is none",
        "The message contains the error of CUDA's or HIP's runtime. Try the same script without "
        "stalloc.",
        ("csrc/device/",),
    ),
    Topic(
        "A plan is not for this run, or a call comes at the wrong time",
        "The plan itself is valid. If the message names a difference (model, inputs, torch, "
        "parallelism, device), profile and plan again. Training goes on unplanned, unless `strict` "
        "was given.",
        (
            "csrc/runtime/",
            "stalloc/session.py",
            "stalloc/_auto/",
            "stalloc/_fit.py",
            "stalloc/ranks.py",
            "stalloc/driver.py",
            "stalloc/options.py",
            "stalloc/_frameworks/megatron_config.py",
        ),
    ),
    Topic(
        "A plan cannot be used",
        "The plan was damaged or edited, or comes from other software. Plan its trace again: "
        "`stalloc plan TRACE -o PLAN --force`. A message that names a row counts from 0, in the "
        "table it names. A plan that was never touched and is refused is a bug: please report it.",
        (
            "csrc/plan/build.cpp",
            "csrc/plan/check.cpp",
            "csrc/plan/plan_json.cpp",
            "csrc/plan/resize.cpp",
            "csrc/plan/startup.cpp",
            "csrc/verify/idle_validator.cpp",
        ),
    ),
    Topic(
        "A trace cannot be used",
        "The trace was cut off or edited, or the profile ended too early. Record it again, with "
        "`stalloc.profile` or `stalloc run --profile`, over at least two iterations.",
        (
            "csrc/trace/",
            "csrc/profile/",
            "csrc/bindings/make_trace.cpp",
            "stalloc/profiling.py",
        ),
    ),
    Topic(
        "A file is no JSON of stalloc's",
        "The message names the file, the key and the row. Was it copied completely, and is it the "
        "file you meant? A newer version than this stalloc knows needs a newer stalloc.",
        ("csrc/base/json_reader.cpp", "csrc/base/json_reader.h"),
    ),
    Topic(
        "A planning problem has no solution, or makes no sense",
        "If a capacity does not suffice, no value below the bound that the message "
        "names can work: raise the capacity, or train with smaller batches. Else the message "
        "names the buffer, the line of the CSV or the option to mend.",
        (
            "csrc/plan/",
            "csrc/solve/",
            "csrc/verify/",
            "csrc/bindings/",
            "csrc/base/align.h",
            "stalloc/planner.py",
            "stalloc/commands/plan.py",
        ),
    ),
    Topic(
        "A file is no recording, or one that cannot be imported",
        "The message names the file and where in it. Was it copied completely? Memory snapshots "
        "come from `torch.cuda.memory._dump_snapshot()` after "
        "`torch.cuda.memory._record_memory_history()`, Kineto traces from a `torch.profiler` with "
        "`profile_memory=True`. A pickle that asks for a class or a function is no snapshot, and "
        "is not run. A snapshot that torch wrote and that is refused is a bug: please report it.",
        ("stalloc/importers/", "csrc/base/pickle.cpp"),
    ),
    Topic(
        "A command was asked for something it cannot do",
        "Exit code 1: the input has to be mended, in the way the message says. Exit code 2: see "
        "`--help`.",
        (
            "stalloc/commands/",
            "stalloc/report/",
            "stalloc/files.py",
            "stalloc/cli.py",
            "csrc/replay/",
        ),
    ),
    Topic(
        "stalloc does not support it, or a call comes at the wrong time",
        "The message says what to do instead.",
        ("stalloc/", "csrc/torch/", "csrc/compat/"),
    ),
)
"""The first whose words match is a message's topic, else the first whose files do."""


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One message.

    Attributes:
        file: Its source, below the project's folder.
        text: As it is shown, with … for what is filled in.
    """

    file: str
    text: str

    @property
    def topic(self) -> Topic:
        """The topic of a message.

        Raises:
            LookupError: No topic names the file.
        """
        for topic in TOPICS:
            if any(words in self.text for words in topic.words):
                return topic
        for topic in TOPICS:
            if any(
                self.file == f or (f[-1] == "/" and self.file.startswith(f)) for f in topic.files
            ):
                return topic
        raise LookupError(f"{self.file} has error messages and no topic in {__file__}: name one")


def messages(root: Path = ROOT) -> list[Message]:
    """Every message of the package, each once."""
    found = set()
    for path in sorted((root / "stalloc").rglob("*.py")):
        for text in python_messages(path.read_text(encoding="utf-8")):
            found.add(Message(str(path.relative_to(root)), text))
    for pattern in ("*.h", "*.cpp"):
        for path in sorted((root / "csrc").rglob(pattern)):
            for text in cpp_messages(path.read_text(encoding="utf-8")):
                found.add(Message(str(path.relative_to(root)), text))
    return sorted(found)


def page(root: Path = ROOT) -> str:
    """The trouble-shooting page's part: topics with their messages, in Markdown."""
    everything = messages(root)
    lines = []
    for topic in TOPICS:
        own = sorted({m.text for m in everything if m.topic is topic}, key=_own_words)
        if own:
            lines += [f"### {topic.title}", "", topic.advice, ""]
            lines += [f"- {as_code(text)}" for text in own]
            lines.append("")
    return "\n".join(lines)


def _own_words(text: str) -> tuple[str, str]:
    """The sort key of a message: its text without leading values."""
    return re.sub(r"^[^a-zA-Z]+", "", text).casefold(), text


def as_code(text: str) -> str:
    """The text as Markdown shows it word for word."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(page())
