"""Reading YAML: what is data, what is refused and where; nothing crashes, hangs or passes silently."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, field_validator

from clustersim.config import yaml
from clustersim.config.fields import Bandwidth, Count, Fraction, Name, Size, Spec, Time, validate
from clustersim.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("true", True), ("False", False), ("TRUE", "TRUE"),
        ("null", None), ("~", None), ("", None), ("12:30", "12:30"), ("1:30:00", "1:30:00"),
        ("2024-01-01", "2024-01-01"), ("0x1F", "0x1F"), ("0o17", "0o17"), ("017", 17), ("-3", -3), ("+3", 3),
        ("1_000", 1000), ("1_", "1_"), ("1__0", "1__0"), ("_1", "_1"), ("1e9", 10**9), ("5E+2", 500),
        ("1.5e3", 1500.0), ("1e-3", 0.001), ("1e23", 1e23), (".5", 0.5), ("5.", 5.0), ("1e9x", "1e9x"),
        ("400 Gb/s", "400 Gb/s"), ("'12'", "12"), ('"true"', "true"), ("''", ""), ("=", "="), ("'nan'", "nan"),
        ("infinity", "infinity"), ("1,2", "1,2"), ("{b: [1, x]}", {"b": [1, "x"]}), ("|\n  1\n", "1\n"),
        (">-\n  a\n  b\n", "a b"), ("1 # comment", 1), ("a#b", "a#b"), ("१", "१"),
    ],
)  # fmt: skip
def test_scalars(text: str, value: Any) -> None:
    found = yaml.parse(f"a: {text}").data["a"]
    assert found == value
    assert type(found) is type(value)


def test_keys_are_text() -> None:
    text = "1: a\ntrue: b\n~: c\n'': d\n1.50: e\nno: f\n"
    assert list(yaml.parse(text).data) == ["1", "true", "~", "", "1.50", "no"]


def test_aliases_are_copies_in_value() -> None:
    assert yaml.parse("a: &x {b: 1}\nc: *x\nd: [*x, *x]").data == {"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}] * 2}


def test_marks_are_the_places_of_values_and_keys() -> None:
    document = yaml.parse("a: 1\nb:\n  c: [x, {d: 2}]\n  e:\n")
    assert document.positions[("a",)][:2] == (1, 4)
    assert document.positions[("b", "c", 1, "d")][:2] == (3, 14)
    assert document.positions[("b", "c", yaml.KEY)][:2] == (3, 3)
    assert str(document.error(("b", "c", 1, "nowhere", 7), "wrong")) == "<text>:3:10: wrong"
    assert str(document.error(("nowhere",), "wrong")) == "<text>:1:1: wrong"


REFUSED = {
    "duplicate key": ("a: 1\nb: 2\na: 3\n", "3:1: duplicate key 'a'; keep one of the two"),
    "recursive list": ("a: &a [1, *a]", "1:11: an alias (*) inside its own anchor (&) never ends"),
    "unknown alias": ("a: *b", "1:4: no anchor &b stands before this alias; write the value out"),
    "merge key": ("a: &a {b: 1}\nc:\n  <<: *a", "3:3: merge keys (<<) are not supported; write the keys out"),
    "list as a key": ("? [a, b]\n: 1", "1:3: a key must be a word, not a list or a mapping"),
    "python tag": ("a: !!python/object/apply:os.system [ls]", "1:4: the tag 'tag:yaml.org,2002:python/object/apply"),
    "nan": ("a: .nan", "1:4: .nan is not a finite number; write one, or put text in quotes"),
    "bare nan": ("a: nan", "1:4: nan is not a finite number"),
    "infinity": ("a: [1, -.inf]", "1:8: -.inf is not a finite number"),
    "overflow": ("a: 1.5e999", "1:4: 1.5e999 is not a finite number"),
    "huge integer": ("a: " + "9" * 50, f"1:4: {'9' * 40}… has more than 40 digits; write fewer"),
    "empty": ("", "1:1: the file is empty; start from one of the shipped examples"),
    "a list": ("- a\n- b\n", "1:1: the top level must be a mapping of keys, not a list; write `key: value`"),
    "a word": ("hello", "1:1: the top level must be a mapping of keys, not a single value; write `key: value`"),
    "a script": ("srun x \\\n  --a 1", "not a single value; write `key: value`; `clustersim import` reads other files"),
    "TOML": ("[job]\nx = 1\n", "keep one document a file; `clustersim import` reads other files"),
    "two documents": ("a: 1\n---\nb: 2\n", "2:1: a second document starts here; keep one document a file"),
    "tab": ("a:\n\tb: 1", "2:1: not valid YAML: found character "),
    "open bracket": ("a: [1, 2", "not valid YAML: "),
    "control character": ("a: 1\nb: \x07x", "2:4: not a text file: control characters are not allowed"),
    "half a surrogate": ("a: \udc80", "not "),
    "deep lists": ("a: " + "[" * 100_000, "1:103: more than 100 levels of nesting; write a flatter file"),
    "deep mappings": ("a: " + "{a: " * 100_000, "more than 100 levels of nesting; write a flatter file"),
    "deep keys": ("? " * 100_000 + "a", "more than 100 levels of nesting; write a flatter file"),
    "many values": ("a: [" + "1," * 300_000 + "]", "more than 200000 values; write a smaller file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_place(case: str) -> None:
    text, message = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        yaml.parse(text, "w.yaml")
    said = str(caught.value)
    assert said.startswith("w.yaml:")
    assert message in said
    assert len(said) < 300
    assert "\n" not in said


def bomb(width: int, depth: int) -> str:
    lines = [f"a0: &a0 [{', '.join(['lol'] * width)}]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, depth)]
    return "\n".join(lines)


@pytest.mark.parametrize(("width", "depth"), [(9, 9), (2, 90), (200, 5)])
def test_alias_bombs_end_soon(width: int, depth: int) -> None:
    with pytest.raises(ConfigError, match="more than 200000 values or 100 levels after aliases; write them out"):
        yaml.parse(bomb(width, depth))


def test_a_chain_of_aliases_does_not_exhaust_the_stack() -> None:
    text = "a0: &a0 [1]\n" + "\n".join(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 5000))
    with pytest.raises(ConfigError, match="100 levels after aliases"):
        yaml.parse(text)


def test_nesting_to_the_limit_is_read() -> None:
    assert yaml.parse("a: " + "[" * 98 + "]" * 98).data


@given(st.text(alphabet=st.characters(codec=None), max_size=200))
@example("a: &a\n- *a")
@example("\ufeffa: 1")
@example("%YAML 9.9\n---\na: 1")
@example("%TAG ! x\n---\n")
def test_any_text_is_data_or_one_error(text: str) -> None:
    try:
        assert isinstance(yaml.parse(text).data, dict)
    except ConfigError as error:
        assert error.line >= 1
        assert error.column >= 1
        assert "\n" not in str(error)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,? \n\t019.e~<=", max_size=60))
def test_any_yaml_like_text_is_data_or_one_error(text: str) -> None:
    test_any_text_is_data_or_one_error.hypothesis.inner_test(text)  # type: ignore[attr-defined]


PLAIN = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])),
)
KEYS = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=20)
TREES = st.dictionaries(
    KEYS, st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=8)
)


@given(TREES)
def test_json_reads_back(tree: dict[str, Any]) -> None:
    """JSON is YAML: what a program writes as JSON comes back as it was."""
    import json

    assert yaml.parse(json.dumps(tree)).data == tree


class Ring(Spec):
    kind: Literal["ring"]
    links: Count = 1


class Star(Spec):
    kind: Literal["star"]
    radix: Count = 1


class Sample(Spec):
    nodes: Count
    name: Name = "x"
    dp: Count | Literal["auto"] = "auto"
    rate: Bandwidth = 1.0
    delay: Time = 0.0
    memory: Size | None = None
    share: Fraction = 1.0
    fast: bool = False
    mode: Literal["a", "b"] = "a"
    net: Annotated[Ring | Star, Field(discriminator="kind")] | None = None
    cables: tuple[Count, ...] = Field(default=(), strict=False)
    rates: dict[Literal["p", "q"], Bandwidth] = Field(default={})
    rings: tuple[Ring, ...] = Field(default=(), strict=False, max_length=2)

    @field_validator("name")
    @classmethod
    def no_spaces(cls, value: str) -> str:
        if " " in value:
            raise ValueError("a name has no spaces, use dashes")
        return value


SAMPLES = [
    ("nodes: 3\ndp: auto\nrate: 400Gb/s\nshare: 1", None),
    ("name: y", "1:1: nodes is missing; add it"),
    ("nods: 3", "1:1: unknown key 'nods'; did you mean 'nodes'? known: cables, delay, dp, fast, memory, mode, "),
    ("nodes: 1\nnet: {kind: ring, link: 2}", "2:19: unknown key 'link'; did you mean 'links'? known: kind, l"),
    ("nodes: 0\nshare: 2", "1:8: nodes: 0 must be at least 1"),
    ("nodes: 1e12", "1:8: nodes: 1000000000000 must be at most 100000000"),
    ("nodes: 1.5", "1:8: nodes: 1.5 must be a whole number"),
    ("nodes: true", "1:8: nodes: true must be a whole number"),
    ("nodes:", "1:7: nodes is empty; it must be a whole number"),
    ("nodes: 1\nname: 12", "2:7: name: 12 must be text; put it in quotes"),
    ("nodes: 1\nname: a b", "2:7: name: a name has no spaces, use dashes"),
    ("nodes: 1\ndp: autoo", "2:5: dp: autoo must be a whole number or 'auto'"),
    ("nodes: 1\ndp: 0", "2:5: dp: 0 must be at least 1 or 'auto'"),
    ("nodes: 1\nrate: 400", "2:7: rate: 400 has no unit; write a bandwidth with one, like 400Gb/s"),
    ("nodes: 1\nrate: 0 Gb/s", "2:7: rate: 0 Gb/s must be greater than 0"),
    ("nodes: 1\ndelay: 5 GB", "2:8: delay: 'GB' is not a unit of time (case matters); known: d, h, min"),
    ("nodes: 1\nshare: 50", "2:8: share: 50 must be at most 1"),
    ("nodes: 1\nfast: yes", "2:7: fast: yes must be true or false"),
    ("nodes: 1\nmode: c", "2:7: mode: c is not known; write 'a' or 'b'"),
    ("nodes: 1\nnet: {kind: x}", "2:6: net: a mapping must have as 'kind' one of 'ring', 'star'"),
    ("nodes: 1\nnet: {links: 1}", "2:6: net: a mapping must have the key 'kind'"),
    ("nodes: 1\ncables:\n  - 1\n  - x", "4:5: cables.1: x must be a whole number"),
    ("nodes: 1\ncables: 3", "2:9: cables: 3 must be a list"),
    ("nodes: 1\nrates: {z: 1GB/s}", "2:9: rates.z: z is not known; write 'p' or 'q'"),
    ("nodes: 1\nrings:\n- {kind: ring, links: 0}", "3:23: rings.0.links: 0 must be at least 1"),
    ("nodes: 1\nrings:\n- {links: 1}", "3:3: rings.0.kind is missing; add it"),
    ("nodes: 1\nrings: [{kind: ring}, {kind: ring}, {kind: ring}]", "2:8: rings: a list must have at most 2 items"),
    ("nodes: 1\nmode: " + "x" * 500, f"2:7: mode: {'x' * 57}... is not known; write 'a' or 'b'"),
]


@pytest.mark.parametrize(("text", "message"), SAMPLES)
def test_validation_says_place_fault_and_remedy(text: str, message: str | None) -> None:
    document = yaml.parse(text, "s.yaml")
    if message is None:
        assert validate(Sample, document).nodes == 3
        return
    with pytest.raises(ConfigError) as caught:
        validate(Sample, document)
    assert str(caught.value).startswith(f"s.yaml:{message}")


def test_a_part_of_a_document_keeps_its_place() -> None:
    document = yaml.parse("fabric:\n  kind: ring\n  links: 0")
    with pytest.raises(ConfigError, match=r"^<text>:3:10: fabric\.links: 0 must be at least 1$"):
        validate(Ring, document, document.data["fabric"], ("fabric",))


@given(TREES)
def test_any_tree_is_a_spec_or_one_error(tree: dict[str, Any]) -> None:
    try:
        validate(Sample, yaml.Document("s.yaml", tree, {}))
    except ConfigError as error:
        assert "\n" not in str(error)


def test_json_escapes_a_character_in_two_halves() -> None:
    assert yaml.parse(r'{"name": "\ud83d\ude00 x", "plain": "\u00e9"}', "config.json").data == {
        "name": "😀 x",
        "plain": "é",
    }


@pytest.mark.parametrize("text", ['{"a": "HALVES HALVES", "b": [1, !x 2]}', '{"a": "HALVES", "b": 1]'])
def test_an_error_behind_a_character_in_two_halves_has_its_column_in_the_file(text: str) -> None:
    """The positions are those of the same file with as many plain letters."""
    columns = []
    for written in (r"\ud83d\ude00", "twelve chars"):
        with pytest.raises(ConfigError) as caught:
            yaml.parse(text.replace("HALVES", written), "config.json")
        columns.append((caught.value.line, caught.value.column))
    assert columns[0] == columns[1]
