"""Tables written as Parquet are read by others as they were."""

from io import BytesIO

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.report import parquet
from clustersim.report.parquet import Texts, encoded

WHOLE = {np.int64: pl.Int64, np.int32: pl.Int32}


def read(columns):
    return pl.read_parquet(BytesIO(encoded(columns)))


@pytest.mark.parametrize("kind", list(WHOLE))
@settings(deadline=None, max_examples=examples(40))
@given(data=st.data())
def test_whole_numbers(kind, data):
    limits = np.iinfo(kind)
    values = data.draw(st.lists(st.integers(int(limits.min), int(limits.max)), max_size=40))
    found = read({"n": np.array(values, kind)})
    assert found.schema == {"n": WHOLE[kind]}
    assert found["n"].to_list() == values


@settings(deadline=None, max_examples=examples(40))
@given(values=st.lists(st.none() | st.floats(allow_nan=False), max_size=40))
def test_floats_are_the_same_to_the_last_bit_and_one_that_is_no_number_stands_for_no_value(values):
    found = read({"x": np.array([np.nan if one is None else one for one in values], float)})
    assert found.schema == {"x": pl.Float64}
    assert list(map(repr, found["x"].to_list())) == list(map(repr, values))


@settings(deadline=None, max_examples=examples(40))
@given(values=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=40))
def test_texts(values):
    found = read({"t": Texts.of(values)})
    assert found.schema == {"t": pl.String}
    assert found["t"].to_list() == values


@settings(deadline=None, max_examples=examples(40))
@given(
    rows=st.integers(1, 30),
    size=st.integers(1, 12),
    kinds=st.lists(st.sampled_from(["whole", "float", "missing", "text"]), min_size=1, max_size=20),
)
def test_row_groups_are_one_table(rows, size, kinds):
    whole = np.arange(rows)
    one = {
        "whole": whole,
        "float": whole / 7,
        "missing": np.where(whole % 3, whole / 7, np.nan),
        "text": Texts.of(f"t{i % 5}" for i in range(rows)),
    }
    columns = {f"{name} {place}": one[name] for place, name in enumerate(kinds)}
    together = read(columns)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parquet, "ROWS", size)
        assert read(columns).equals(together)
        assert encoded(columns) == encoded(columns)
    assert together.shape == (rows, len(kinds))


def test_other_readers_agree():
    arrow = pytest.importorskip("pyarrow.parquet")
    columns = {"n": np.arange(9), "x": np.where(np.arange(9) % 2, np.arange(9.0), np.nan), "t": Texts.of("abcabcabc")}
    assert arrow.read_table(BytesIO(encoded(columns))).to_pydict() == read(columns).to_dict(as_series=False)


def test_many_rows_of_few_texts_take_little_room():
    assert len(encoded({"tier": Texts.of(["nic-up", "nic-down"] * 50_000)})) < 2_000
