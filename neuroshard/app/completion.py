"""Shell completion: commands, the settings that `--help` says, the choices of groups, and models by name."""

from collections.abc import Iterable

from neuroshard.app.arguments import with_reader
from neuroshard.app.commands import COMMANDS
from neuroshard.app.settings import settings_of
from neuroshard.bundles import known_names
from neuroshard.plumbing.configs import Composed, choices, experiments_of

_BASH_SCRIPT = """\
_neuroshard() {
    local word="${COMP_WORDS[COMP_CWORD]}"
    if [ "$COMP_CWORD" -le 1 ]; then
        COMPREPLY=($(compgen -W "@COMMANDS@" -- "$word"))
        return
    fi
    local words=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
    COMPREPLY=($(neuroshard complete "$word" "${words[@]}" 2>/dev/null))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _neuroshard neuroshard
"""


def bash_script(commands: Iterable[str]) -> str:
    """Write a script by which bash completes `commands`; where nothing is known, bash completes file names."""
    return _BASH_SCRIPT.replace("@COMMANDS@", " ".join(commands))


def completions(word: str, command: str, before: Iterable[str]) -> list[str]:
    """List what `word` may become behind a command and the words before it; nothing where a file is wanted.

    It is asked at every press of a key: nothing here may import what is slow to import.
    """
    if command == "models":
        return _starting(word, known_names())
    if command not in COMMANDS:
        return []
    composed = Composed.of(command, _asked_in(before))
    settings = settings_of(composed)
    choices_of = {group: choices(group) for group in composed.chosen} | {"experiment": experiments_of(command)}
    key, written, _ = word.partition("=")
    if not written:
        return _starting(word, sorted({f"{name}=" for name in (*choices_of, *(setting.key for setting in settings))}))
    values = {setting.key: setting.values for setting in settings} | {"model": known_names()} | choices_of
    return _starting(word, [f"{key}={value}" for value in values.get(key, ())])


def _asked_in(words: Iterable[str]) -> dict[str, str]:
    """Collect the settings that were set before, a sweep's first choices, and files by what reads them."""
    written = (text for word in words for text in with_reader(word))
    return {key: value.split(",")[0] for key, _, value in (text.partition("=") for text in written)}


def _starting(word: str, candidates: Iterable[str]) -> list[str]:
    return [candidate for candidate in candidates if candidate.startswith(word)]
