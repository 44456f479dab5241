"""CSV files of measured runs: what is read, and one sentence with the line for what is wrong."""

import pytest
from validate_cases import ROW, write

from clustersim.errors import InputError
from clustersim.validate import run, runs


def test_cells_become_numbers_flags_and_blanks(tmp_path):
    [found] = runs.read(write(tmp_path / "runs.csv", {"kv_heads": "MLA", "overlap_tp": "1", "num_gpus": "8.0"}))
    assert (found.num_gpus, found.sec_per_iter, found.kv_heads, found.line) == (8, 0.1, "MLA", 2)
    assert found.overlap_tp is True
    assert found.ep is None
    assert found.overlap_p2p is None
    assert found.ran


WITHOUT = {
    **dict.fromkeys(("pp", "vpp", "cp", "ep"), 1),
    **dict.fromkeys(("experts", "topk", "shared_experts", "zero_stage"), 0),
    **dict.fromkeys(("sequence_parallel", "flash_attention"), False),
    **dict.fromkeys(("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p"), False),
    "overlap_tp": "none",
    "recompute": "none",
}


@pytest.mark.parametrize(("column", "value"), WITHOUT.items())
def test_none_is_another_value_than_a_blank_cell(tmp_path, column, value):
    names = tuple(dict.fromkeys((*ROW, column)))
    [stated] = runs.read(write(tmp_path / "runs.csv", {column: "none"}, names=names))
    [blank] = runs.read(write(tmp_path / "runs.csv", {column: ""}, names=names))
    assert (getattr(stated, column), getattr(blank, column)) == (value, "" if column == "recompute" else None)
    for word in runs.NONE - {"none", "0"} - ({"false", "f"} if column == "overlap_tp" else set()):
        [found] = runs.read(write(tmp_path / "runs.csv", {column: word}, names=names))
        assert not found.unreadable
        assert getattr(found, column) in {value, word}, word


def test_words_of_kv_heads_are_mla_and_mqa_alone(tmp_path):
    for word, heads in (("mla", "MLA"), ("MQA", 1), ("8", 8), ("foo", None), ("none", None), ("GQA", None)):
        [found] = runs.read(write(tmp_path / "runs.csv", {"kv_heads": word}))
        assert (found.kv_heads, bool(found.unreadable)) == (heads, heads is None)


def test_a_byte_order_mark_extra_columns_and_blank_lines_do_not_matter(tmp_path):
    path = write(tmp_path / "runs.csv", {"note": "x"}, names=(*ROW, "note"), bom=True)
    path.write_bytes(path.read_bytes() + b"\r\n\r\n")
    assert [one.id for one in runs.read(path)] == ["MINE-1"]


def test_a_run_that_crashed_needs_no_time(tmp_path):
    names = (*ROW, "status")
    path = write(tmp_path / "runs.csv", {"sec_per_iter": "", "status": "out of memory"}, names=names)
    [found] = runs.read(path)
    assert not found.ran
    assert found.sec_per_iter is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tp": "eight"}, "runs.csv:2:1: tp: 'eight' is not a whole number of 1 or more"),
        ({"dp": "0"}, "runs.csv:2:1: dp: '0' is not a whole number of 1 or more"),
        ({"sec_per_iter": "nan"}, "runs.csv:2:1: sec_per_iter: 'nan' is not seconds of a step, 1e-6 to 1e6"),
        ({"sec_per_iter": ""}, "runs.csv:2:1: sec_per_iter: is blank"),
        ({"nic_gbps_per_gpu": "inf"}, "runs.csv:2:1: nic_gbps_per_gpu: 'inf' is not a number"),
        ({"overlap_tp": "maybe"}, "runs.csv:2:1: overlap_tp: 'maybe' is not 1 or 0"),
        ({"gpu": ""}, "runs.csv:2:1: gpu: is blank; every run needs one"),
        ({"layers": "9" * 5000}, "is not a whole number of 1 to 1,000"),
        ({"hidden": str(2**63)}, f"hidden: '{2**63}' is above the largest value, 9,223,372,036,854,775,807"),
    ],
)
def test_a_wrong_cell_is_named_with_its_line(tmp_path, change, said):
    [found] = runs.read(write(tmp_path / "runs.csv", change))
    assert said in found.unreadable
    assert "\n" not in found.unreadable
    with pytest.raises(InputError) as caught:  # where no row at all can be read
        run.load([tmp_path / "runs.csv"])
    assert str(caught.value) == found.unreadable


def test_an_id_stands_once(tmp_path):
    one, two = write(tmp_path / "a.csv"), write(tmp_path / "b.csv", {"id": "X-1"}, {}, {"id": "X-1"})
    assert "b.csv:4:1: id: 'X-1' stands in line 2 already" in runs.read(two)[2].unreadable
    *_, last = run.load([one, write(tmp_path / "c.csv")])
    assert "c.csv:2:1: id: 'MINE-1' stands in" in last.unreadable
    assert last.id == "MINE-1 (c.csv:2)"


def test_missing_and_doubled_columns_are_named(tmp_path):
    names = [name for name in ROW if name not in ("gpu", "sec_per_iter")]
    with pytest.raises(
        InputError, match=r"runs.csv:1:1: no column gpu, sec_per_iter; the first line names the columns"
    ):
        runs.read(write(tmp_path / "runs.csv", names=names))
    path = tmp_path / "twice.csv"
    path.write_text(",".join((*ROW, "tp")) + "\n")
    with pytest.raises(InputError, match="two columns 'tp'; keep one"):
        runs.read(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no column id"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"id\n\x00\n", "not a text file"),
        (",".join(ROW).encode(), "has no runs under its header"),
        ((",".join(ROW) + '\n"MINE"x,2\n').encode(), "not valid CSV"),
    ],
)
def test_what_is_no_table_of_runs_is_refused(tmp_path, content, said):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        runs.read(path)
    assert said in str(caught.value)


def test_too_many_rows_are_refused_at_the_first_one_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "MOST_ROWS", 2)
    path = write(tmp_path / "runs.csv", *({"id": f"X-{i}"} for i in range(3)))
    with pytest.raises(InputError, match=r"runs.csv:4:1: more than 2 runs; split the file"):
        runs.read(path)
