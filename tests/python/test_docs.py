"""The documentation: what it says of messages and commands is what there is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import error_messages  # noqa: E402
from error_messages import Message  # noqa: E402


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
  return "asked for " + g(x) + "; had none";
}
""",
    )
    assert found(tmp_path) == [
        "asked for …; had none",
        "is odd",
        "row …",
        'the pool of … bytes "is" too large',
    ]


def test_every_message_has_its_place_in_the_page() -> None:
    page = error_messages.page()
    messages = error_messages.messages()
    assert len(messages) > 100
    for message in messages:
        assert f"- {error_messages.as_code(message.text)}\n" in page + "\n"


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


def test_pictures_are_of_the_size_of_a_page() -> None:
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < 300_000, f"{picture.name} is too large for the repository"
