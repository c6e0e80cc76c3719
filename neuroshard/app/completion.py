"""Shell completion: commands, the settings that `--help` says, the choices of groups, and models by name."""

from collections.abc import Iterable

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
    """What completes `commands`, for bash to evaluate; where nothing is known, bash completes file names."""
    return _BASH_SCRIPT.replace("@COMMANDS@", " ".join(commands))


def completions(word: str, command: str, before: Iterable[str]) -> list[str]:
    """What `word` may become behind a command and the words before it; nothing where a file is wanted.

    Raises:
        UserError: the words before make no sense.
    """
    if command == "models":
        return _starting(word, _model_names())
    key, written, _ = word.partition("=")
    if written and key == "model":
        return _starting(word, [f"model={name}" for name in _model_names()])

    from neuroshard.app.arguments import as_overrides
    from neuroshard.app.settings import settings_of
    from neuroshard.registry import choices, chosen_of, compose_config

    texts = [text for text in before if "=" in text]
    overrides = [str(override.input_line) for override in as_overrides(command, texts)]
    chosen = chosen_of(command, overrides)
    groups = [*chosen, "experiment"]
    if written:
        return _starting(word, [f"{key}={name}" for name in choices(key)] if key in groups else [])
    settings = settings_of(command, compose_config(command, overrides), chosen)
    return _starting(word, sorted({f"{name}=" for name in (*groups, *(setting.key for setting in settings))}))


def _model_names() -> list[str]:
    from neuroshard.models.cost_models import known_names

    return known_names()


def _starting(word: str, candidates: Iterable[str]) -> list[str]:
    return [candidate for candidate in candidates if candidate.startswith(word)]
