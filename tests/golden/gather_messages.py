"""Writes messages.json from the messages that tests cause, and from the source of all other messages."""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neuroshard.plumbing.messages import Message

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).parent / "messages.json"
MAKERS = {"UserError", "InfeasibleError", "MissingPackageError", "Message"}
PARTS = ("what", "where", "limit", "remedy")


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield the place and the call of every message that the product's source makes with a code."""
    for folder in ("neuroshard", "augment", "pretrain", "search"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.is_relative_to(ROOT / "neuroshard" / "stages"):  # links to the other folders
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", None) in MAKERS:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def code_of(call: ast.Call) -> str | None:
    """Return the code that a call writes out; None if it hands on another message's."""
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def template_of(call: ast.Call) -> str:
    """Return the text of a message that no test causes, with the expressions in place of their values."""
    given = dict(zip(PARTS, (_text(arg) for arg in call.args[1:]), strict=False))
    given |= {word.arg: _text(word.value) for word in call.keywords if word.arg in PARTS}
    return str(Message("template", **{"what": ""} | given))


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    return f"{{{ast.unparse(node)}}}"


def main(seen_in: Path) -> None:
    """Write messages.json from the files that the processes of a test run wrote into a directory."""
    seen: dict[str, dict[str, list[str]]] = {}
    for path in sorted(seen_in.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            seen.setdefault(entry["code"], {}).setdefault(entry["test"], []).append(entry["text"])
    messages: dict[str, Any] = {}
    for _, call in calls():
        code = code_of(call)
        if code is None:
            continue
        tests = seen.get(code, {})
        if tests:
            test = min(tests, key=lambda name: (len(set(tests[name])), name))
            messages[code] = {"test": test, "messages": sorted(set(tests[test]))}
        else:
            messages[code] = {"test": None, "messages": [template_of(call)]}
    FILE.write_text(json.dumps(messages, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    caused = sum(entry["test"] is not None for entry in messages.values())
    print(f"{FILE.name}: {len(messages)} messages, {caused} of them caused by tests")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
