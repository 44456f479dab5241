"""Reader of launch scripts that never runs them: variables, arrays, continued lines, sums and simple conditions of bash.

Supported are assignments (`A=1`, `A=(…)`, `A+=…`, export, local, declare), `$A`, `${A}`, `${A:-1}`, `${A:=1}`, `${A[@]}`,
`$((…))`, quotes, comments, `if` with `[ … ]` or `[[ … ]]`, commands up to a pipe, without redirections, and the text of `eval`
or `bash -c "…"`. Loops, functions, groups, `case` and output of other programs (`$(…)`) are left out; a variable that only they,
the environment or the script's arguments (`$1`) would set stays unset.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from clustersim.convert.arithmetic import UNREADABLE, evaluated
from clustersim.convert.launchers import LaunchSettings, of_command, of_header
from clustersim.errors import InputError

DEEPEST = 20
"""Largest number of nested defaults, and of nested shells."""
LONGEST = 100_000
"""Largest number of words of an array, and of values that expansions may produce."""
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"\$(?:\(\((?P<sum>[^()]*(?:\([^()]*\)[^()]*)*)\)\)|\{(?P<brace>(?:[^{}]|\{[^{}]*\})*)\}|(?P<name>[A-Za-z_]\w*|\d|[@*#?]))"
)
_BRACED = re.compile(r"(?P<name>\w+)(?P<all>\[[@*]\])?(?:(?P<how>:?[-=])(?P<default>.*))?$", re.DOTALL)
_KEYWORDS = {"export", "local", "declare", "readonly"}
_SHELLS = {"bash", "sh"}
_FUNCTION = re.compile(r"(function\s+\w+\s*(\(\s*\))?|\w+\s*\(\s*\))\s*(\{.*)?", re.DOTALL)
_REDIRECTION = re.compile(r"(?:\d*|&)(?:>>?|<{1,3})(?P<target>.*)", re.DOTALL)
_PRINTED = "\0"
"""Placeholder for output of another program, until all variables are replaced."""
_AFTER = {"|", "|&", "||", "&"}
"""Words after which another command begins."""
_COMPARE = {f"-{name}": getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")}


@dataclass(slots=True)
class Shell:
    """State while a script is read: variables and commands as lists of words, launches of shells, and unset variables."""

    path: str
    """Path of the script, for messages."""
    variables: dict[str, list[str]]
    commands: list[list[str]] = field(default_factory=list)
    unset: dict[str, None] = field(default_factory=dict)
    launches: list[LaunchSettings] = field(default_factory=list)
    depth: int = 0

    def run(self, text: str) -> None:
        """Read a script to its end. Raises InputError for a quote or parenthesis that is never closed."""
        if self.depth > DEEPEST:
            raise InputError(f"{self.path}: runs itself without end; give the script that launches the training")
        branches: list[list[bool]] = []  # of each `if`: whether one of its branches was taken, whether this one is
        skipped = 0
        for statement in statements(self.path, text):
            first = statement.split(None, 1)[0] if statement.split() else ""
            if first in ("for", "while", "until", "case"):
                skipped += 1
            elif first in ("done", "esac") and skipped:
                skipped -= 1
            elif skipped or first.startswith("{") or _FUNCTION.fullmatch(statement):
                continue
            elif first in ("if", "elif", "else", "fi"):
                self._branch(first, statement, branches)
            elif all(taken for _, taken in branches):
                self._statement(statement.removeprefix("then ").strip())

    def _branch(self, first: str, statement: str, branches: list[list[bool]]) -> None:
        """Open, switch or close an `if`. branches: [whether one of its branches was taken, whether this one is] of each."""
        if first == "if":
            outer = all(holds for _, holds in branches)
            holds = outer and self._true(statement[2:])
            branches.append([holds or not outer, holds])
        elif first == "fi" and branches:
            branches.pop()
        elif branches:
            done = branches[-1][0]
            holds = not done and (first == "else" or self._true(statement[4:]))
            branches[-1] = [done or holds, holds]
            rest = statement.removeprefix("else").strip()
            if first == "else" and holds and rest:
                self._statement(rest)

    def _true(self, condition: str) -> bool:
        """Return whether a condition holds; False for a condition that is not supported."""
        for joint, every in (("||", any), ("&&", all)):
            parts = condition.split(joint)
            if len(parts) > 1:
                return every(self._true(part) for part in parts)
        words = self.expand(re.sub(r"\[\[| ?\]\]|\[ | \]", " ", condition), empty=True)
        wanted = words[:1] != ["!"]
        words = words if wanted else words[1:]
        return self._test(words) == wanted

    def _test(self, words: Sequence[str]) -> bool:
        """Return whether the words of `[ … ]` hold: a text, -n, -z, or a comparison of texts or integers."""
        match words:
            case ["-n", text] | [text]:
                return text != ""
            case ["-z", text]:
                return text == ""
            case [left, "=" | "==" | "!=" as sign, right]:
                return (left == right) == (sign != "!=")
            case [left, sign, right] if sign in _COMPARE and all(end.lstrip("-").isdecimal() for end in (left, right)):
                return bool(_COMPARE[sign](int(left), int(right)))
        return False

    def _statement(self, statement: str) -> None:
        """Set the variables of an assignment, record a command, or run the text of a shell or `eval`."""
        words = split(statement)
        if words and words[0] in _KEYWORDS:
            words = [word for word in words[1:] if not word.startswith("-")]
        if words and all(_ASSIGN.fullmatch(word) for word in words):
            for word in words:
                self._assign(word)
            return
        while words and _ASSIGN.fullmatch(words[0]):
            words = words[1:]
        expanded = self.expand(" ".join(_command_words(words)))
        if inner := _nested_script(expanded):
            self.launches.append(of_command(expanded))
            self.variables |= {name: [value] for name, value in self.launches[-1].variables.items()}
            self.depth += 1
            self.run(inner)
            self.depth -= 1
        elif expanded:
            self.commands.append(expanded)

    def _assign(self, word: str) -> None:
        """Set the variable of `A=1`, `A=(…)` or `A+=…`. Raises InputError for one that grows without end."""
        name, more, text = _ASSIGN.fullmatch(word).groups()  # type: ignore[union-attr]  # as the caller checked
        if text.startswith("("):
            value = self.expand(text[1:-1])
            value = [*self.variables.get(name, []), *value] if more else value
        else:
            value = ["".join(self.expand(f'"{text[1:-1]}"' if _quoted(text) else text, unsplit=True))]
            value = ["".join(self.variables.get(name, [])) + value[0]] if more else value
        if len(value) > LONGEST or sum(map(len, value)) > 100 * LONGEST:
            raise InputError(f"{self.path}: {name} grows without end; give the script that sets it once")
        self.variables[name] = value

    def expand(self, text: str, empty: bool = False, unsplit: bool = False) -> list[str]:
        """Return the words of a text with variables replaced. empty: keep empty quoted words. unsplit: the text is one word."""
        result: list[str] = []
        for word in [text] if unsplit else split(text):
            quoted, single = _quoted(word), word[:1] == "'" and word[-1:] == "'"
            replaced = word[1:-1] if single else self._replaced(_unquoted(word), 0)
            if unsplit or (quoted and "[@]" not in word):
                result += [replaced] if replaced or empty or unsplit else []
            else:
                result += replaced.split()
        return result

    def _replaced(self, text: str, depth: int) -> str:
        """Return a text with variables replaced, without output of programs. Raises InputError for a `depth` beyond DEEPEST."""
        if depth > DEEPEST:
            raise InputError(f"{self.path}: variables hold each other without end; write one of them out")
        text = re.sub(r"\$\((?!\()[^()]*\)|`[^`]*`", _PRINTED, text)
        return _VARIABLE.sub(lambda match: self._value(match, depth), text).replace(_PRINTED, "")

    def _value(self, match: re.Match[str], depth: int) -> str:
        """Return the value of one `$A`, `${A:-default}` or `$((…))`; "" for an unset variable, which is recorded."""
        if match["sum"] is not None:
            return self._sum(match["sum"], depth)
        inner = _BRACED.fullmatch(match["brace"]) if match["brace"] is not None else None
        name = inner["name"] if inner else match["name"] or ""
        value, known = " ".join(self.variables.get(name, [])), name in self.variables
        if inner and inner["how"] and not (value if inner["how"].startswith(":") else known):
            value = self._replaced(_unquoted(inner["default"]), depth + 1)
            if inner["how"][-1] == "=":
                self.variables[name] = [value]
            return value
        if name and not known:
            self.unset[name] = None
        return value

    def _sum(self, text: str, depth: int) -> str:
        """Return the value of `$((…))` as text; "" if it is not an integer or depends on the output of a program."""
        if _PRINTED in text:
            return ""
        bare = re.sub(r"(?<![\w${}])([A-Za-z_]\w*)", r"$\1", text)
        try:
            result = evaluated(self._replaced(bare, depth + 1).strip())
        except UNREADABLE:
            return ""
        return str(result) if isinstance(result, int) else ""


def _command_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command up to a pipe or the next command, without redirections and their targets."""
    targets = 0
    for word in words:
        if word in _AFTER:
            return
        redirection = _REDIRECTION.fullmatch(word)
        if redirection is None and not targets:
            yield word
        targets = int(redirection is not None and not redirection["target"])


def _nested_script(words: Sequence[str]) -> str:
    """Return the text that `eval` or a shell among the words runs (`srun … bash -x -c "…"`); "" if there is none."""
    if words[:1] == ["eval"]:
        return " ".join(words[1:])
    for at, word in enumerate(words):
        if word.rsplit("/", 1)[-1] in _SHELLS:
            flags = list(takewhile(lambda flag: flag.startswith("-"), words[at + 1 :]))
            after = at + 1 + len(flags)
            if flags and flags[-1].endswith("c") and after < len(words):
                return words[after]
    return ""


def _quoted(word: str) -> bool:
    """Return whether a word is in quotes as a whole."""
    return len(word) > 1 and word[0] == word[-1] and word[0] in "\"'"


def _unquoted(word: str) -> str:
    """Return a word without its quotes, including those inside it."""
    return re.sub(r"""(["'])(.*?)\1""", r"\2", word, flags=re.DOTALL) if not _quoted(word) else word[1:-1]


def _letters(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (index, letter, quote or parentheses that it lies in) without comments, and a space where a line is continued."""
    place, quote, depth = 0, "", 0
    while place < len(text):
        letter = text[place]
        if letter == "\\" and text[place + 1 : place + 2] == "\n":  # no line goes on behind a comment
            letter, place = " ", place + 1
        elif quote:
            quote = "" if letter == quote and text[place - 1] != "\\" else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and (place == 0 or text[place - 1] in " \t\n;("):
            place = len(text) if text.find("\n", place) < 0 else text.find("\n", place)
            continue
        elif letter in "({":
            depth += 1
        elif letter in ")}":
            depth = max(depth - 1, 0)
        yield place, letter, quote or "(" * depth
        place += 1


def split(text: str) -> list[str]:
    """Return the words of a text; quotes, parentheses and braces keep a word together."""
    words = [""]
    for _, letter, inside in _letters(text):
        if letter.isspace() and not inside:
            words.append("")
        else:
            words[-1] += letter
    return [word for word in words if word]


def statements(path: str, text: str) -> Iterator[str]:
    """Yield the statements of a script, without comments and line continuations. Raises InputError for an unclosed quote."""
    statement, inside, script = "", "", text.replace("\r\n", "\n")
    for place, letter, inside in _letters(script):
        anded = script[place : place + 2] == "&&" and "[" not in statement
        if not inside and (letter in "\n;" or anded):
            if statement.strip() not in ("", "then", "do", ";"):
                yield statement.strip()
            statement = ""
        else:
            statement += letter if statement or letter != "&" else ""  # the second one of &&
    if inside:
        raise InputError(f"{path}: {'a parenthesis' if '(' in inside else 'a quote'} is never closed; close it")
    if statement.strip():
        yield statement.strip()


def commands(path: str, text: str, variables: Mapping[str, str]) -> Shell:
    """Return the state after a script was read, with its commands. Raises InputError for what cannot be read.

    variables: environment variables, which override those that Slurm sets from the script's header.
    """
    known = {**of_header(text).variables, **variables}
    shell = Shell(path, {name: [value] for name, value in known.items()})
    shell.run(text)
    return shell
