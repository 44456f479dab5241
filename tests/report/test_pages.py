"""What the page of a run shows is what the simulation found."""

import csv
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clustersim.config.results import Manifest
from clustersim.costs.bill import rates
from clustersim.costs.figures import load
from clustersim.engine.program import COMPUTE
from clustersim.model.kernel import Kernel
from clustersim.pages import sweep
from clustersim.pages.network import KINDS, network
from clustersim.pages.published import nearest
from clustersim.pages.run import SCRIPTS, STYLES, run_data, run_page
from clustersim.pages.shell import ASSETS, script_json
from clustersim.parallel.memory import Memory
from clustersim.report.step_trace import pass_parts
from clustersim.simulation import simulate
from clustersim.validate.runs import PUBLISHED

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\u2066" + "x" * 10_000


@pytest.fixture(scope="module")
def result():
    keys = {"parallelism.tp": 2, "parallelism.pp": 4, "training.global_batch": 64, "training.micro_batch": 1}
    return simulate("topologies/leaf_spine_32.yaml", "workloads/gpt2_large.yaml", keys)


@pytest.fixture(scope="module")
def data(result):
    return run_data(result, "clustersim run leaf_spine_32 gpt2_large", Manifest(clustersim="0"))


def test_the_kernels_and_flows_of_a_pass_fill_it(result):
    for activity in (one for one in result.plan.activities if one.timing.source):
        source = activity.timing.source
        parts = list(pass_parts(activity, source, result.work.seconds))
        assert sum(isinstance(part.what, Kernel) for part in parts) == sum(isinstance(i, Kernel) for i in source.items)
        assert math.fsum(part.end - part.start for part in parts) == pytest.approx(activity.timing.idle, rel=1e-9)
        assert all(a.end <= b.start + 1e-12 for a, b in itertools.pairwise(parts))
        assert parts[-1].end == pytest.approx(activity.timing.idle, rel=1e-9)


def test_the_timeline_has_every_span_and_marks_the_critical_path(result, data):
    t = data["timeline"]
    step = sum(span.stream != "wait" for span in result.record.spans if span.end > span.start)
    drawn = sum(many for _, stream, many in t["lanes"] if t["streams"][stream] != "wait")
    assert t["fold"] is None and drawn == step
    took = np.array(t["took"])[np.array(t["critical"]) > 0].sum() * 1e-9
    assert took == pytest.approx(result.record.end, rel=1e-6)
    starts = np.array(t["start"])
    assert (starts >= 0).all() and len(starts) == len(t["took"]) == sum(many for *_, many in t["lanes"])
    compute = next(many for _, stream, many in t["lanes"] if t["streams"][stream] == COMPUTE)
    assert sum(t["took"][:compute]) <= t["step"]


def test_what_links_carry_is_drawn_over_the_launches_of_the_host():
    keys = {"predictor": "roofline", "parallelism.cp": 2, "training.framework": "megatron-2020"}
    t = run_data(
        simulate("topologies/leaf_spine_32.yaml", "workloads/gpt2_large.yaml", keys), "", Manifest(clustersim="0")
    )["timeline"]
    order = [t["streams"][stream] for row, stream, _ in t["lanes"] if row == 0]
    assert order[:2] == ["compute", "host"]
    assert {"cp", "dp"} <= set(order)


def test_the_costs_on_a_page_are_those_of_its_speed_unless_the_run_has_its_own(result, data):
    seconds = 1e12 / result.summary["tokens_per_s"]
    rent = rates(result.topology, load()).rent
    assert data["costs"]["usd"] == pytest.approx(rent * seconds, rel=1e-9)
    own = {f"{key}_per_1t_tokens": 1.0 for key in data["costs"]}
    other = replace(result, summary={**result.summary, "costs": own})
    assert set(run_data(other, "clustersim run", Manifest(clustersim="0"))["costs"].values()) == {1.0}


def test_the_shares_of_kernels_are_the_compute_of_the_mean_rank(result, data):
    rows = [row for row in data["kernels"]["rows"] if row["layer"] != "optimizer"]
    share = math.fsum(row["share"] for row in rows)
    assert share * result.record.end == pytest.approx(result.summary["breakdown_s"]["compute"], rel=1e-6)
    assert all(0 < row["of_roof"] <= 1 + 1e-9 for row in data["kernels"]["rows"])
    path = math.fsum(row["critical_s"] for row in data["kernels"]["rows"])
    assert path <= result.summary["critical_path_s"]["compute"] + result.summary["critical_path_s"]["optimizer"] + 1e-9


def test_memory_over_time_peaks_where_the_summary_says(result, data):
    for rank, peak in zip(data["memory"]["ranks"], result.summary["memory"]["by_pipeline_rank"], strict=True):
        held = [np.array(values) for values in rank["held"].values()]
        assert float(np.max(sum(held))) * 2**20 == pytest.approx(peak["total_bytes"], abs=8 * 2**20)
        assert sum(rank["peak"].values()) * 2**20 == pytest.approx(peak["total_bytes"], abs=8 * 2**20)
        assert len(rank["start"]) == 2 * result.job.microbatches


def test_every_kind_of_memory_is_drawn():
    assert sorted(KINDS) == sorted(Memory._fields)


def test_every_rank_has_its_class(result, data):
    ranks = data["ranks"]
    of = np.repeat(*np.array(ranks["of"]).T)
    assert len(of) == result.job.mesh.size
    assert [int((of == cell).sum()) for cell in range(len(ranks["first"]))] == ranks["size"]
    assert of[ranks["first"]].tolist() == list(range(len(ranks["first"])))


def test_links_are_as_the_summary_has_them(result, data):
    by_name = {one["link"]: one for one in data["network"]["links"]}
    for one in result.summary["busiest_links"]:
        tier = next(t for t in data["network"]["tiers"] if t["name"] == one["link"].partition("[")[0])
        assert max(tier["use"]) >= round(one["utilization"], 4)
        if one["link"] in by_name:
            assert by_name[one["link"]]["limits"] == pytest.approx(one["limiting_s"], abs=1e-6)
    assert {end["name"].partition("[")[0] for end in data["network"]["picture"]["ends"]} == {"node", "leaf", "spine"}


def test_faults_are_marked(tmp_path):
    text = Path("topologies/leaf_spine_32.yaml").read_text(encoding="utf-8")
    place = tmp_path / "faulty.yaml"
    place.write_text(
        text
        + "\nfaults:\n  - {link: 'leaf-up[3]', rate: 10GB/s}\n  - {gpu: 5, slowdown: 1.2}\n  - {node: 7, dead: true}\n"
    )
    found = network(simulate(place, "workloads/gpt2_large.yaml", {"predictor": "roofline"}))
    assert found["slow_gpus"] == [5]
    assert {end["name"]: end["ill"] for end in found["picture"]["ends"] if end["ill"]} == {
        "node[0]": "slow",
        "node[7]": "dead",
    }
    [tier] = [one for one in found["tiers"] if one["name"] == "leaf-up"]
    assert tier["ill"] == [3]
    assert any(cable["ill"] for cable in found["picture"]["cables"])


def test_a_large_cluster_is_drawn_with_what_is_alike_as_one():
    """Nodes on the same leaves are one; every link between a node and a leaf stands for itself in a count."""
    result = simulate("topologies/superpod_h100_128.yaml", "workloads/llama3_70b.yaml", {"predictor": "roofline"})
    drawn = network(result)["picture"]
    kinds = {kind: [end for end in drawn["ends"] if end["name"].startswith(kind)] for kind in ("node", "leaf", "spine")}
    assert [end["many"] for end in kinds["node"]] == [32] * 4
    assert len(kinds["leaf"]) == 32 and sum(end["many"] for end in kinds["leaf"]) == 32
    assert sum(end["many"] for end in kinds["spine"]) == result.topology.counts["spine_switches"]
    of_nodes = [one for one in drawn["cables"] if drawn["ends"][min(one["a"], one["b"])]["level"] == 0]
    assert sum(one["links"] for one in of_nodes) == 2 * 1024
    longest = max(one["limiting_s"] for one in result.summary["busiest_links"])
    assert max(one["limits"] for one in drawn["cables"]) == pytest.approx(longest, abs=1e-6)


def test_the_largest_cluster_is_drawn_by_kind_and_its_faults_stand_alone():
    keys = {"predictor": "roofline", "faults": [{"link": "nic[137]", "rate": "6GB/s"}, {"gpu": 4000, "slowdown": 1.2}]}
    drawn = network(simulate("topologies/fattree_3840.yaml", "workloads/gpt3.yaml", keys))["picture"]
    ends = {end["name"]: end for end in drawn["ends"]}
    # adaptive routing: the spines that a leaf reaches are one end of a bundle of cables, and drawn with their number
    counts = {"node": 3838, "node[17]": 1, "node[500]": 1, "leaf": 959, "leaf[1]": 1, "spine": 960, "core": 480}
    assert {name: end["many"] for name, end in ends.items()} == counts
    assert ends["node[500]"]["ill"] == "slow"
    [bad] = [one for one in drawn["cables"] if one["ill"]]
    assert {drawn["ends"][bad[end]]["name"] for end in "ab"} == {"node[17]", "leaf[1]"}
    assert bad["limits"] == max(one["limits"] for one in drawn["cables"]) > 0
    assert sum(one["links"] for one in drawn["cables"]) == 2 * (30720 + 960 + 30)


def test_the_slower_links_of_an_older_type_of_node_are_no_fault():
    keys = {"predictor": "roofline", "parallelism.tp": 8, "parallelism.pp": 4}
    found = network(simulate("topologies/mixed_h100_b200_64.yaml", "workloads/llama3_70b.yaml", keys))
    assert not any(tier["ill"] for tier in found["tiers"])
    assert not any(end["ill"] for end in found["picture"]["ends"])


def test_the_nearest_published_run_of_a_published_setup_is_that_run(result):
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = nearest(result.topology, result.job, len(rows))
    assert len(found) == len(rows)
    for one in found:
        row = next(row for row in rows if row["id"] == one["id"])
        assert one["error"] == pytest.approx(float(row["predicted_s"]) / float(row["sec_per_iter"]) - 1)
    assert found[0]["gpu"].startswith("h100")


def test_no_text_can_leave_the_data():
    shown = script_json({"name": HOSTILE, "lines": "\u2028\u2029-->"})
    assert not re.search(r"[<>&]", shown)
    assert json.loads(shown) == {"name": HOSTILE, "lines": "\u2028\u2029-->"}


def test_a_page_has_one_script_of_data_and_one_that_draws_whatever_names_say(result):
    summary = {**result.summary, "name": HOSTILE, "warnings": [HOSTILE]}
    hostile = replace(result, summary=summary)
    page = run_page(
        hostile,
        f"clustersim run {HOSTILE}",
        Manifest(clustersim="0", inputs={HOSTILE: {"path": HOSTILE, "sha256": "0"}}),
    )
    assert page.count("<script") == page.count("</script") == 2
    assert "<img" not in page
    assert len(page) < 400_000


def test_a_page_asks_nobody_for_anything(result):
    page = run_page(result, "clustersim run x y", Manifest(clustersim="0"))
    outside = re.findall(r"""(?:src|href|url|import|fetch)\s*[=(:]\s*["']?\s*(?:https?:)?//[^"'\s)]+""", page)
    assert outside == []
    assert "default-src 'none'" in page


@pytest.mark.parametrize("name", sorted({*SCRIPTS, *STYLES, *sweep.SCRIPTS, *sweep.STYLES}))
def test_the_files_of_a_page_are_read_by_people(name):
    text = (ASSETS / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 300
    assert "innerHTML" not in text and "eval(" not in text and "document.write" not in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_report_is_written_with_the_run_or_afterwards_and_is_the_same(tmp_path, call):
    run = ("run", "nvlink_h100_4", "gpt2_large", "--pp", "2", "--predictor", "roofline", "--out", "one", "--quiet")
    assert call(*run, "--why", "--html")[0] == 0
    written = (tmp_path / "one/report.html").read_text()
    (tmp_path / "one/report.html").unlink()
    code, out, _err = call("report", "one")
    assert code == 0 and "written to one/report.html (open it in a browser)" in out
    assert (tmp_path / "one/report.html").read_text() == written
    assert call("report", "one", "--out", "b.html", "--quiet")[1] == ""
    assert (tmp_path / "b.html").read_text() == written
    assert call(*run)[0] == 0
    assert not (tmp_path / "one/report.html").exists()


def test_a_report_has_the_what_ifs_of_explain_where_they_are_asked_for(tmp_path, call):
    run = ("run", "nvlink_h100_4", "gpt2_large", "--pp", "2", "--predictor", "roofline", "--out", "one", "--quiet")
    page = tmp_path / "one/report.html"

    def shown():
        return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])["why"]

    assert call(*run, "--html")[0] == 0
    assert shown() is None
    _code, out, _err = call("explain", "one", "--json")
    assert call("report", "one", "--quiet")[0] == 0
    found = json.loads(out)
    assert shown() == {"bottlenecks": found["bottlenecks"], "what_ifs": found["what_ifs"]}
    for one in found["what_ifs"]:
        assert bool(one["flags"]) == bool(one["run"])


def test_what_cannot_be_a_report_is_said_in_a_sentence(tmp_path, call):
    for words, said in (
        (["report", "none"], "none: is no result; give the folder of a run"),
        (["report", "."], ".: is no result"),
        (
            ["run", "nvlink_h100_4", "gpt2_large", "--html", "--no-save"],
            "--html: the page lies in the folder of the result",
        ),
    ):
        code, _out, err = call(*words)
        assert code == 2
        assert said in err
        assert "Traceback" not in err
