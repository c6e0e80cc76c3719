"""Errors and warnings in tests: tests compare codes, places and values; only messages.json contains the wording.

tests/golden/messages.json has for each code that tests cause one test, and the texts that this test causes. If this
test runs, its texts are compared with the file. `make messages` rewrites the file: review the difference.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from neuroshard.app import cli
from neuroshard.app.failures import complain
from neuroshard.plumbing.errors import NeuroShardWarning, UserError
from neuroshard.plumbing.messages import Message
from neuroshard.words.fingerprint import fingerprint
from tests.golden.gather_messages import FILE
from tests.kit.commands import run_command

_WRITTEN_WITH = "1.8."  # the release of TorchRec with which the file is written: a few messages depend on the release
UPDATE = os.environ.get("NEUROSHARD_MESSAGES_UPDATE")  # a directory for the messages that each process has seen
_DIFFERENT_ELSEWHERE = (  # parts of messages that differ between machines, and their replacements in the file
    (re.compile(r"[^ '=\[]*/pytest-of-[^/]+/pytest-[0-9]+/(popen-gw[0-9]+/)?[^/ ':,]+"), "TMP"),
    (re.compile(r"neuroshard-[a-z0-9_]{8}\b"), "neuroshard-RANDOM"),
    (re.compile(r"worker [0-9]+ died"), "worker N died"),
    (re.compile(re.escape(str(Path(__file__).parents[2]))), "CHECKOUT"),
    (re.compile(r"this machine has [0-9.]+ GiB"), "this machine has N GiB"),
    (re.compile(r"TorchRec 1\.[0-9]+"), "TorchRec 1.x"),
    (re.compile(re.escape(f"is cpu ({fingerprint('cpu').device})")), "is cpu (CPU)"),
)


@contextmanager
def refused(code: str, *, where: str | None = None, names: Sequence[object] = (), kind: type = UserError) -> Iterator:
    """Expect a UserError with this code in the block; yield the `ExceptionInfo` of pytest.

    Args:
        code: the code of the message.
        where: the place that the message must name, if the test knows it.
        names: values, tables and settings that the message must contain.
        kind: the class of the error.
    """
    with pytest.raises(kind) as raised:
        yield raised
    check(raised.value.message, code, where=where, names=names)


@contextmanager
def warned(*codes: str) -> Iterator[None]:
    """Expect exactly one warning of the project, with messages of these codes."""
    with pytest.warns(NeuroShardWarning) as caught:
        yield
    messages = [one for warning in caught if isinstance(warning.message, NeuroShardWarning)
                for one in warning.message.messages]  # fmt: skip
    assert [one.code for one in messages] == list(codes)
    for message in messages:
        check(message, message.code)


def logged(caplog: Any) -> list[Message]:
    """Return the messages logged at any level, after comparing each with messages.json."""
    messages = [record.msg for record in caplog.records if isinstance(record.msg, Message)]
    for message in messages:
        check(message, message.code)
    return messages


def logged_codes(caplog: Any) -> list[str]:
    """Return the codes of the messages that were logged."""
    return [message.code for message in logged(caplog)]


def logged_one(caplog: Any, code: str, *, where: str | None = None, names: Sequence[object] = ()) -> Message:
    """Return the message of this code, which must be logged exactly once; `where` and `names` are as in `refused`."""
    messages = [message for message in logged(caplog) if message.code == code]
    assert len(messages) == 1, f"{len(messages)} messages {code} among {logged_codes(caplog)}"
    check(messages[0], code, where=where, names=names)
    return messages[0]


def refused_command(
    capsys: Any, code: str, *arguments: object, where: str | None = None, names: Sequence[object] = ()
) -> Message:
    """Run a command that must end with exit code 2 and a message with this code, its only line on standard error."""
    with reported() as messages:
        exit_code, _, err = run_command(capsys, *arguments)
    assert exit_code == 2, err
    (message,) = messages
    assert err == f"neuroshard: error: {message}\n"
    check(message, code, where=where, names=names)
    return message


@contextmanager
def reported() -> Iterator[list[Message]]:
    """Record the errors that commands report in this process; compare each with messages.json when the block ends."""
    messages: list[Message] = []
    with patch.object(cli, "complain", lambda message: messages.append(message) or complain(message)):
        yield messages
    for message in messages:
        check(message, message.code)


def check(message: Message, code: str, *, where: str | None = None, names: Sequence[object] = ()) -> None:
    """Check code, place and values of a message, and its text if messages.json has the texts of the running test."""
    assert message.code == code, f"{message.code}: {message}"
    assert where is None or message.where == where, message
    missing = [name for name in names if str(name) not in str(message)]
    assert not missing, f"{missing} missing in: {message}"
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    text = str(message)
    for pattern, same in _DIFFERENT_ELSEWHERE:
        text = pattern.sub(same, text)
    if UPDATE:
        with (Path(UPDATE) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"code": code, "test": test, "text": text}) + "\n")
        return
    known = _known().get(code, {})
    if known.get("test") == test and version("torchrec").startswith(_WRITTEN_WITH):
        assert text in known["messages"], f"{text}\nis not in messages.json, which has\n{known['messages']}"


@cache
def _known() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
