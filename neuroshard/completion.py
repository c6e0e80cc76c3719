"""Shell completion: subcommands by ourselves, everything after them by Hydra."""

from collections.abc import Iterable

_BASH_SCRIPT = """\
_neuroshard() {
    local word="${COMP_WORDS[COMP_CWORD]}"
    if [ "$COMP_CWORD" -le 1 ]; then
        COMPREPLY=($(compgen -W "@COMMANDS@" -- "$word"))
        return
    fi
    local command="${COMP_WORDS[1]}"
    local rest="${COMP_LINE#*"$command"}"
    local suggestions
    suggestions=$(COMP_LINE="neuroshard$rest" COMP_POINT=$((10 + ${#rest})) neuroshard "$command" -sc query=bash)
    COMPREPLY=($(compgen -o nospace -o default -W "$suggestions" -- "$word"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _neuroshard neuroshard
"""


def bash_script(commands: Iterable[str]) -> str:
    """What completes `commands`, for bash to evaluate."""
    return _BASH_SCRIPT.replace("@COMMANDS@", " ".join(commands))
