"""The documentation: what it says of messages and commands is what there is."""

from __future__ import annotations

import argparse
import re
import sys
from operator import attrgetter
from pathlib import Path

import pytest

import stalloc
from stalloc.commands import COMMANDS, Command

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import error_messages  # noqa: E402
from error_messages import TOPICS, Message  # noqa: E402


def found(root: Path) -> list[str]:
    return [message.text for message in error_messages.messages(root)]


def source(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_messages_are_found_in_python(tmp_path: Path) -> None:
    source(
        tmp_path,
        "stalloc/a.py",
        """
def f(x):
    if x:
        raise ValueError(f"there is no {x!r}: "
                         "choose another")
    warnings.warn("odd" + f" {x}", StallocWarning)
    raise SystemExit("not this")
    self._fail(f"row {x}", f"{x} is too large", 1)
    _fail(x, error)
    raise OSError(errno.EINVAL, "is a device", str(path))

def model_mismatch(x):
    return f"it was {x}"
""",
    )
    assert found(tmp_path) == [
        "is a device",
        "it was …",
        "odd …",
        "there is no …: choose another",
        "… is too large",
    ]


def test_words_that_stand_elsewhere_in_a_python_file_are_followed(tmp_path: Path) -> None:
    source(
        tmp_path,
        "stalloc/a.py",
        """
REASON = "it is " "not to be"

def f(x):
    what = "no such file: make it"
    self.driver.stand_aside(REASON)
    driver.stand_aside(reason_of(x))
    raise OSError(errno.ENOENT, what, x) from None

def g(x):
    raise _exists(x)

def _exists(x):
    return FileExistsError(errno.EEXIST, "is there already", x)

def h(x):
    raise DoesNotFit(f"{x}: {_why(x)}")

def _why(x):
    what = f"it takes {x}; "
    if x:
        return what + "none is smaller"
    return what + f"{x} may do"

def unplannable(x):
    return REASON if x else None
""",
    )
    assert found(tmp_path) == [
        "is there already",
        "it is not to be",
        "no such file: make it",
        "…: it takes …; none is smaller",
        "…: it takes …; … may do",
    ]


def test_messages_are_found_in_cpp(tmp_path: Path) -> None:
    source(
        tmp_path,
        "csrc/a.cpp",
        """
void f() {
  throw PlanError("the pool of " + format(x, ")") + " bytes \\"is\\" "
                  "too large");
  if (x) fail(index, "is odd");
  throw Error(std::string("row ") + std::to_string(i));
  throw std::bad_alloc();
}
std::string A::some_message(int x) const {
  const auto y = Bytes{0};
  return "asked for " + g(x) + "; had none";
}
void g() {
  TORCH_CHECK(f(a, "b") && c, "there is no device ", name, "; there are ", count());
  TORCH_CHECK_WITH(OutOfMemoryError, p, "tried to allocate ", size);
  run_out("for a graph");
  throw stalloc::Error("no runtime is loaded");
}
""",
    )
    assert found(tmp_path) == [
        "asked for …; had none",
        "for a graph",
        "is odd",
        "no runtime is loaded",
        "row …",
        'the pool of … bytes "is" too large',
        "there is no device …; there are …",
        "tried to allocate …",
    ]


def test_every_message_has_its_place_in_the_page() -> None:
    page = error_messages.page()
    messages = error_messages.messages()
    assert len(messages) > 100
    for message in messages:
        assert f"- {error_messages.as_code(message.text)}\n" in page + "\n"


def test_a_message_is_found_by_its_own_words() -> None:
    page = error_messages.page()
    for topic in page.split("### ")[1:]:
        listed = re.findall(r"^- `+ ?(.*?) ?`+$", topic, re.MULTILINE)
        assert listed
        own = [re.sub("^[^a-zA-Z]+", "", text).lower() for text in listed]
        assert own == sorted(own)


def test_lists_the_out_of_memory_error_of_torch() -> None:
    texts = [m.text for m in error_messages.messages() if "tried to allocate" in m.text]
    assert any("largest hole is" in text for text in texts)
    assert any("while profiling" in text for text in texts)
    assert any("for a CUDA graph" in text for text in texts)


def test_no_topic_names_a_file_without_messages() -> None:
    files = {m.file for m in error_messages.messages()}
    for name in [name for topic in TOPICS for name in topic.files]:
        assert any(file == name or file.startswith(f"{name.rstrip('/')}/") for file in files), name


def test_a_file_without_a_topic_is_refused() -> None:
    with pytest.raises(LookupError, match=r"csrc/new/a\.cpp has error messages and no topic"):
        assert Message("csrc/new/a.cpp", "it is odd").topic


def test_messages_the_page_quotes_by_hand_are_still_there() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    quoted = re.findall(r"```text\n(?:\w+: )?(.*?)\n```", page)
    assert quoted
    sources = "".join(path.read_text() for path in (ROOT / "stalloc").rglob("*.py"))
    for text in quoted:
        assert text in sources


def test_every_public_name_is_on_the_page_on_python() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    documented = set(re.findall(r"^\.\. auto\w+:: stalloc\.([\w.]+)", page, re.MULTILINE))
    assert "errors" in documented  # the module, with all that is in it
    errors = {name for name in stalloc.__all__ if hasattr(stalloc.errors, name)}
    assert {name.partition(".")[0] for name in documented} >= set(stalloc.__all__) - errors
    for name in documented:
        assert attrgetter(name)(stalloc) is not None


_COMMON = {"--help", "--force", "--json", "--output", "--device", "--repeat"}
"""Options that the page explains once for all commands."""


def _section(command: str) -> str:
    if command == "report":
        return (ROOT / "docs" / "reports.md").read_text()
    page = (ROOT / "docs" / "commands.md").read_text()
    return page.split(f"\n## stalloc {command}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_options_in_the_docs_are_those_of_the_parser(command: Command) -> None:
    parser = command.add_parser(argparse.ArgumentParser().add_subparsers())
    section = _section(parser.prog.split()[-1])
    options = {
        name: action.choices or ()
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--")
    }
    rows = {
        name: row
        for first, row in re.findall(r"^\| (`-[^|]+)\|(.*)", section, re.MULTILINE)
        for name in re.findall(r"--[a-z][a-z-]*", first)
    }
    assert rows.keys() <= options.keys()
    assert options.keys() - rows.keys() <= _COMMON
    for name in options.keys() & rows.keys():
        choices = list(options[name])
        missing = [choice for choice in choices if f"`{choice}`" not in rows[name]]
        assert len(choices) > 3 or missing == [], name


def test_pictures_are_of_the_size_of_a_page() -> None:
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < 300_000, f"{picture.name} is too large for the repository"


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "frameworks").glob("*.md")), ids=lambda page: page.stem
)
def test_each_framework_page_begins_with_the_one_line(page: Path) -> None:
    block = re.search(r"^```bash\n(.*)\n```$", page.read_text(), re.MULTILINE)
    assert block is not None
    assert "stalloc run " in block[1]
    assert "\n#" not in page.read_text()[2 : block.start()], "above every section"
