"""The page of a sweep has every point, with its figures, the reason where there are none, and its command."""

import json
import re

import pytest
from commands import command

from clustersim.pages.sweep import sweep_data, sweep_page
from clustersim.report import store
from clustersim.sweeps import log

AXES = ["--tp", "1,2,4,8", "--pp", "1,2", "--micro-batch", "1,4", "--set", "model.vocab=50304"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    place = tmp_path_factory.mktemp("explore")
    command("sweep", "hgx_h100_8", "llama3_8b", *AXES, "--workers", "1", "--out", "one", "--quiet", cwd=place)
    return place / "one"


@pytest.fixture(scope="module")
def found(sweep):
    points, rows, _ = log.read(sweep)
    return [(points[name], rows[name]) for name in rows], store.manifest(sweep)


def _value(data, name, i):
    packed = data["columns"].get(name)
    if packed is None:
        return data["same"].get(name)
    if "numbers" in packed:
        return packed["numbers"][i]
    return packed["texts"][packed["places"][i]] if packed["places"][i] >= 0 else None


def test_every_point_has_its_figures_or_its_reason(found):
    data = sweep_data(*found)
    assert data["points"] == len(found[0]) == 16
    for i, (point, row) in enumerate(found[0]):
        assert _value(data, "status", i) == row["status"]
        assert [str(_value(data, name, i)) for name in data["axes"]] == [str(point[key]) for key in _varied(data)]
        if row["status"] == "ok":
            for name in ("step_time_s", "tokens_per_s", "mfu", "peak_memory_bytes", "compute_s", "bubble_s"):
                assert _value(data, name, i) == pytest.approx(row[name], rel=1e-5)
        else:
            assert _value(data, "reason", i) == row["reason"]
    assert {row["status"] for _, row in found[0]} == {"ok", "illegal", "does not fit"}


def _varied(data):
    return [key for name in data["axes"] for column, _, key, _ in data["flags"] if column == name]


def test_the_words_of_a_point_are_those_of_the_sweep(sweep, found):
    import polars as pl

    data = sweep_data(*found)
    commands = {}
    for i, (point, row) in enumerate(found[0]):
        if row["status"] == "illegal":
            continue  # its reason says all
        words = list(data["command"])
        for name, flag, key, shared in data["flags"]:
            value = shared or str(_value(data, name, i))
            words += [flag, value] if flag else ["--set", f"{key}={value}"]
        commands[log.key(point)] = " ".join(words)
    assert sorted(commands.values()) == sorted(pl.read_parquet(sweep / "points.parquet")["run"].drop_nulls().to_list())


def test_it_is_written_and_what_is_no_sweep_is_said_so(sweep, tmp_path, call):
    code, out, err = call("explore", str(sweep), "--out", "a.html")
    assert code == 0 and "written to a.html (open it in a browser)" in out
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == sweep_page(sweep)
    code, out, err = call("explore", str(sweep), "--quiet")
    assert code == 0 and (sweep / "report.html").exists()
    (sweep / "report.html").unlink()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/manifest.json").write_text(json.dumps({"clustersim": "0.1.0", "command": "run"}))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/manifest.json").write_text(json.dumps({"clustersim": "0.1.0", "command": "sweep"}))
    (tmp_path / "empty/points.jsonl").write_text("")
    for name, said in (
        ("none", "is no result"),
        ("run", "is the result of `clustersim run`"),
        ("empty", "has no points yet"),
    ):
        code, out, err = call("explore", name)
        assert code == 2 and said in err and "Traceback" not in err


def test_an_explorer_has_the_what_ifs_of_its_fastest_point_if_they_are_asked_for(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    words = ["nvlink_h100_4", "gpt2_large", "--predictor", "roofline", "--global-batch", "16"]
    assert call("sweep", *words, "--tp", "1,2", "--pp", "1,2", "--workers", "1", "--out", "s", "--quiet")[0] == 0
    assert call("explore", "s", "--why", "--quiet")[0] == 0
    text = (tmp_path / "s/report.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    best = data["columns"]["tokens_per_s"]["numbers"].index(max(data["columns"]["tokens_per_s"]["numbers"]))
    split = {name: data["columns"][name] for name in ("tp", "pp")}
    own = {
        name: str((one.get("numbers") or [one["texts"][p] for p in one["places"]])[best]) for name, one in split.items()
    }
    run = [word for name, value in own.items() for word in (f"--{name}", value)]
    found = json.loads(call("run", *words, *run, "--why", "--json", "--no-save", "--engine", "auto")[1])["why"]
    assert data["why"]["step_time_s"] == pytest.approx(found["step_time_s"], rel=1e-12)
    assert [one["name"] for one in data["why"]["what_ifs"]] == [one["name"] for one in found["what_ifs"]]
    assert call("explore", "s", "--quiet")[0] == 0
    assert (
        '"why"'
        not in (tmp_path / "s/report.html").read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0]
    )
