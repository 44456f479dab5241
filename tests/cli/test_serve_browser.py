"""The pages of `clustersim serve` in a browser: from the form to a report, progress, stop, compare, keys, hostile names."""

import json
import shutil

import pytest
from browser import CONTRAST, SCHEMES, WIDTHS, drawn, harmless, needs_browser, readable, visiting
from commands import command
from serving import CLUSTER, JOB, LONG, filled, served
from until import until

from clustersim.report import store

pytest.importorskip("uvicorn", reason='no uvicorn here; pip install "clustersim[serve]"')
pytestmark = [pytest.mark.slow, needs_browser]
HOSTILE = "<script>alert(1)<\\script><img src=x onerror=alert(2)>\"'&\u202e"  # what a folder can be called
PAGES = {
    "home": ("", ["3 results in", "Simulate a step", "step time", "Compare: choose two or more"]),
    "run": ("result/deep/two", ["small-gpt on nvlink-h100-4", "Open the report", "The command", "summary.json"]),
    "sweep": ("result/sweep", ["2 points", "Write the explorer", "points.parquet"]),
    "compare": ("compare?of=one&of=deep/two", ["takes", "longer", "training.global_batch", "critical path", "bubble"]),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def server(results):
    with served(results, "--workload", str(JOB), "--at-once", "2") as found:
        yield found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_it_opens_quietly_fits_and_can_be_read(chromium, server, name, width, scheme):
    place, words = PAGES[name]
    with visiting(chromium, f"{server.url}/{place}", width, scheme) as found:
        readable(found, width)
        text = found.page.inner_text("main")
        assert [one for one in words if one not in text] == []


def test_a_run_from_the_form_to_its_report(chromium, server, results):
    with visiting(chromium, server.url) as found:
        page = found.page
        page.select_option("#topologies", CLUSTER)
        page.select_option("#workloads", str(JOB))
        page.fill("#option-micro_batch", "2")
        page.click("summary")
        page.fill("#option-predictor", "roofline")
        page.fill("#more", "training.clip_gradients=false\n")
        command = (
            f"clustersim run {CLUSTER} {JOB} --micro-batch 2 --predictor roofline --set training.clip_gradients=false"
        )
        assert page.inner_text("#start pre") == command
        page.click("text=Simulate >> nth=-1")
        page.wait_for_selector(".child:has-text('done')", timeout=60_000)
        assert command in page.inner_text(".child")
        name = page.locator(".child a").nth(1).inner_text()
        step = store.read_summary(results / name)["step_time_s"]
        assert f"{1000 * step:.1f} ms" in page.inner_text(".child")
        assert name in page.inner_text("#results") and page.inner_text("h1").startswith("4 results in ")
        page.click(".child a:has-text('Open the page')")
        drawn(page)
        assert "where the step goes" in page.inner_text("main").lower()
        assert found.said == []
    shutil.rmtree(results / name)


def test_progress_is_seen_and_a_run_is_stopped(chromium, server):
    server.begin()
    with visiting(chromium, server.url) as found:
        page, row = found.page, found.page.locator(".child").first
        until(lambda: page.evaluate("document.querySelector('.child progress').value") > 0.3)
        assert row.locator("progress").is_visible() and row.locator("[role=status]").inner_text() not in ("", "starts")
        page.focus(".child button")
        page.wait_for_timeout(1200)  # a poll or two
        assert page.evaluate("document.activeElement.textContent") == "Stop"  # what has the focus keeps it
        page.keyboard.press("Enter")
        page.wait_for_selector(".child:has-text('stopped')", timeout=15_000)
        assert not row.locator("button").is_visible() and not row.locator("progress").is_visible()
        assert found.said == []


def test_what_is_refused_is_said_where_it_was_asked(chromium, server):
    with visiting(chromium, server.url) as found:
        page = found.page
        page.click("summary")
        page.fill("#more", "no value")
        page.keyboard.press("Tab")
        page.click("button[type=submit]")
        page.wait_for_selector("[role=alert]:has-text('each line is key=value')")
        page.fill("#more", "")
        page.select_option("#topologies", CLUSTER)
        page.fill("#option-tp", "3")
        page.click("button[type=submit]")
        page.wait_for_selector(".child:has-text('no result')", timeout=60_000)
        assert "tp" in page.inner_text(".child .error")
        assert [line for line in found.said if "400" not in line] == []  # which the console says of any refusal


def test_results_are_chosen_and_compared_by_keys_alone(chromium, server, results):
    with visiting(chromium, server.url) as found:
        page = found.page
        assert page.locator("#compare").is_disabled()
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            words = page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.id")
            reached.append(words)
            if words.startswith("Compare "):
                page.keyboard.press("Space")
            if sum(one.startswith("Compare ") for one in reached) == 2:
                break
        assert {"topologies", "workloads", "Filter", "theme"} <= {*reached}
        page.focus("#compare")
        assert page.inner_text("#compare") == "Compare 2 results"
        page.keyboard.press("Enter")
        page.wait_for_url("**/compare?*")
        drawn(page)
        text = page.inner_text("main")
        for name in ("one", "deep/two"):
            assert f"{1000 * store.read_summary(results / name)['expected_step_time_s']:.1f} ms" in text
        page.go_back()
        drawn(page)
        page.fill("#filter", "two")
        assert page.locator("#results tbody tr").count() == 1
        assert found.said == []


def test_the_list_and_a_comparison_show_the_expected_step(chromium, server, results):
    usual = results / "usual"
    shutil.copytree(results / "one", usual)
    summary = store.read_summary(usual) | {"step_time_s": 2.0, "expected_step_time_s": 2.5}
    (usual / "summary.json").write_text(json.dumps(summary))
    for place, rows in (("", "#results tbody tr"), ("compare?of=one&of=usual", "[aria-label=Steps] tbody tr")):
        with visiting(chromium, f"{server.url}/{place}") as found:
            row = found.page.locator(rows, has_text="usual").inner_text()
            assert "2.500 s" in row and "2.000 s" not in row
    shutil.rmtree(usual)


def test_why_a_page_is_not_written_stays_on_it(chromium, server, results, tmp_path):
    """Its workload has changed since: the page keeps the sentence, and can be asked for again."""
    job = tmp_path / "job.yaml"
    shutil.copy(JOB, job)
    command("run", CLUSTER, str(job), "--predictor", "roofline", "--out", str(results / "changed"), "--quiet")
    job.write_text(job.read_text() + "\n")
    with visiting(chromium, f"{server.url}/result/changed") as found:
        for times in (1, 2):
            found.page.click("#write:enabled")
            until(lambda often=times: len(_reports_of(server, "changed", "failed")) == often)
            found.page.wait_for_selector(".child .error:has-text('has changed since')")
            assert found.page.locator(".child").count() == 1
    shutil.rmtree(results / "changed")


def _reports_of(server, name, state):
    children = server.ask("/api/state").json["children"]
    return [one for one in children if one["command"].endswith(f"/{name}") and one["state"] == state]


def test_runs_that_others_begin_are_listed_newest_first(chromium, server):
    with visiting(chromium, server.url) as found:
        numbers = [server.begin({**LONG, "options": {**LONG["options"], "tp": tp}}) for tp in ("2", "4")]
        for number in numbers:
            found.page.wait_for_selector(f"[data-number='{number}']")
        shown = found.page.eval_on_selector_all(".child", "all => all.map((one) => Number(one.dataset.number))")
        assert shown == sorted(shown, reverse=True)
        for number in numbers:
            server.ask("/api/stop", {"number": number})
            server.wait(number, "stopped")


def test_a_report_cannot_act_as_a_page_of_the_server(chromium, server, results):
    """Whoever has put it there: it reads nothing of the server, and starts nothing."""
    evil = results / "evil"
    shutil.copytree(results / "one", evil)
    run = json.dumps({"method": "POST", "body": json.dumps(LONG)})
    (evil / "report.html").write_text(
        "<html data-ready><script>window.got = []; const to = (word) => () => got.push(word);"
        "fetch('/api/state').then(to('read'), to('refused'));"
        f"fetch('/api/run', {run}).then(to('read'), to('refused'));"
        "try { document.cookie; got.push('cookie') } catch { got.push('refused') }</script>"
    )
    before = len(server.ask("/api/state").json["children"])
    with visiting(chromium, f"{server.url}/file/evil/report.html") as found:
        until(lambda: found.page.evaluate("got.length") == 3)
        assert found.page.evaluate("got") == ["refused"] * 3
    assert len(server.ask("/api/state").json["children"]) == before
    shutil.rmtree(evil)


def test_hostile_names_are_text(chromium, server, results, tmp_path):
    evil = tmp_path / "results" / HOSTILE
    shutil.copytree(results / "one", evil)
    summary = json.loads((evil / "summary.json").read_text())
    summary["name"] = summary["parallelism"]["schedule"] = HOSTILE + "x" * 10_000
    summary["cluster"] |= {"name": HOSTILE, "gpu": HOSTILE}
    summary["critical_path_s"][HOSTILE] = summary["breakdown_s"][HOSTILE] = 1.0
    (evil / "summary.json").write_text(json.dumps(summary))
    shutil.copytree(results / "one", tmp_path / "results/one")
    job = tmp_path / f"{HOSTILE}.yaml"
    shutil.copy(JOB, job)
    with served(tmp_path / "results", "--workload", str(job)) as other, visiting(chromium, other.url, 500) as found:
        page = found.page
        assert HOSTILE[:20] in page.inner_text("#results") and "\u202e" not in page.inner_text("main")
        page.select_option("#workloads", str(job))
        page.select_option("#topologies", CLUSTER)
        page.fill("#option-tp", "<b>")
        page.click("button[type=submit]")
        page.wait_for_selector(".child:has-text('no result')", timeout=60_000)
        for box in page.locator("#results input[type=checkbox]").all():
            box.check()
        harmless(found, 500)
        page.click("#compare")
        drawn(page)
        assert HOSTILE[:20] in page.inner_text("main")
        harmless(found, 500)
        page.click("text=← All results")
        drawn(page)
        page.locator("#results a").filter(has_text="<script>").first.click()
        drawn(page)
        assert "<script>" in page.inner_text("h1")
        harmless(found, 500)


def test_the_token_is_asked_for_and_let_in(chromium, results):
    token = "0123456789abcdef"
    with served(results, CLUSTERSIM_TOKEN=token) as guarded, visiting(chromium, guarded.url) as found:
        page = found.page
        assert page.evaluate(CONTRAST) == [] and "one" not in page.inner_text("main").split()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=alert]:has-text('That is not the token.')")
        page.fill("#token", token)
        page.keyboard.press("Enter")
        page.wait_for_selector("#results")
        assert "one" in page.inner_text("#results")
        assert page.evaluate("document.cookie") == ""  # no script reads it
        assert [line for line in found.said if "401" not in line] == []


def test_a_server_that_has_gone_is_said(chromium, results):
    with served(results) as ending, visiting(chromium, ending.url) as found:
        ending.begin()
        found.page.wait_for_selector(".child", timeout=10_000)
        ending.process.terminate()
        found.page.wait_for_selector("[role=alert]:has-text('The server does not answer')", timeout=20_000)
