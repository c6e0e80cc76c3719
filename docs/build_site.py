"""Builds the documentation as a site in build/site: `make site`.

MkDocs reads pages from one folder, but pages link to files elsewhere in the checkout (README.md, examples, the archive
of results). So `main` first copies all pages and the files that pages link to into build/pages, with the same paths.
MkDocs then loads this module as a hook: `on_config` reads the navigation from docs/index.md, and `on_page_markdown`
adds the blank lines that MkDocs needs in front of lists, and removes links to folders.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGES = ROOT / "build" / "pages"
_QUIET = {"NO_MKDOCS_2_WARNING": "1"}  # the theme's notice about a later version of MkDocs
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_TITLED_LINK = re.compile(r"(?<!!)\[(?P<title>[^\[\]]*)\]\((?P<path>[^)#\s:]+)\)")
_ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<path>[^)#]+)\)", re.MULTILINE)
_LIST_ITEM = re.compile(r"^\s*([-*]|\d+\.) ")


def main() -> None:
    """Copy the pages, and build the site; exit with the status of MkDocs, which fails on a dead link."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for file in sorted(_files()):
        copy = PAGES / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(DOCS / "mkdocs.yml")]
    raise SystemExit(subprocess.run(command, check=False, env=os.environ | _QUIET).returncode)


def on_config(config: Any) -> Any:
    """Return MkDocs' config with the navigation that docs/index.md lists: a section for each heading."""
    config.nav = navigation((DOCS / "index.md").read_text(encoding="utf-8"))
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page as MkDocs can show it: lists set apart, links to folders as plain text."""
    return without_links_to_folders(with_lists_apart(markdown), (ROOT / page.file.src_uri).parent)


def without_links_to_folders(markdown: str, folder: Path) -> str:
    """Return a page with the titles of links to folders, such as folders of data, which the site does not have.

    Links are relative to `folder`, the page's own folder in the checkout.
    """
    return _TITLED_LINK.sub(lambda link: link["title"] if (folder / link["path"]).is_dir() else link[0], markdown)


def with_lists_apart(markdown: str) -> str:
    """Return a page with a blank line in front of every list, as MkDocs' Markdown requires and GitHub's does not."""
    lines: list[str] = []
    in_code = False
    for line in markdown.split("\n"):
        before = lines[-1] if lines else ""
        if not in_code and _LIST_ITEM.match(line) and _is_text(before):
            lines.append("")
        in_code ^= line.lstrip().startswith("```")
        lines.append(line)
    return "\n".join(lines)


def navigation(index: str) -> list[Mapping[str, Any]]:
    """Return MkDocs' navigation from the text of docs/index.md.

    Every list item of the index that begins with a link is an entry, below the heading (`## ...`) that it stands under.
    """
    sections = index.split("\n## ")[1:]
    entries = [(section.partition("\n")[0], [*_entries(section)]) for section in sections]
    listed = [{title: pages} for title, pages in entries if pages]
    return [{"NeuroShard": ["README.md", {"All pages": "docs/index.md"}]}, *listed]


def _entries(section: str) -> Iterator[Mapping[str, str]]:
    for match in _ENTRY.finditer(section):
        path = (DOCS / match["path"]).resolve().relative_to(ROOT)
        yield {match["title"]: path.as_posix()}


def _is_text(line: str) -> bool:
    """Return True if a list item after this line would be read as a continuation of a paragraph."""
    return bool(line.strip()) and not line.startswith((" ", "#", "```")) and not _LIST_ITEM.match(line)


def _files() -> set[Path]:
    """Return the style, README.md, the pages in docs/, and every file of the checkout that links lead to from there."""
    found = {DOCS / "site.css"}
    waiting = {ROOT / "README.md", *DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")}
    while waiting:
        file = waiting.pop()
        found.add(file)
        waiting |= set(_linked(file)) - found
    return found


def _linked(file: Path) -> Iterator[Path]:
    """Yield the files of the checkout that a page links to; links that lead nowhere are left for MkDocs to report."""
    if file.suffix != ".md":
        return
    for target in _LINK.findall(file.read_text(encoding="utf-8")):
        linked = (file.parent / target).resolve()
        if "://" not in target and linked.is_file() and linked.is_relative_to(ROOT):
            yield linked


if __name__ == "__main__":
    main()
