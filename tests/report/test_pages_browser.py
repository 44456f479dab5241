"""The page of a run in a browser, from a file and with the network cut: what it says, and that hands and keys move it."""

import json
from dataclasses import replace

import pytest
from browser import HOSTILE, SCHEMES, WIDTHS, harmless, needs_browser, opened, readable

from clustersim.config.results import Manifest
from clustersim.config.shipped import find
from clustersim.explain.explanation import explained
from clustersim.pages.run import run_page
from clustersim.question import StepQuestion
from clustersim.simulation import silent, simulate
from clustersim.units import duration

pytestmark = [pytest.mark.slow, needs_browser]
KEYS = {"parallelism.pp": 4, "training.global_batch": 4096}


@pytest.fixture(scope="module")
def result():
    return simulate("topologies/superpod_h100_128.yaml", "workloads/llama3_70b.yaml", KEYS)


@pytest.fixture(scope="module")
def why(result):
    asked = StepQuestion(find("topologies", "superpod_h100_128"), find("workloads", "llama3_70b"), KEYS)
    return explained(asked, silent, result).facts()


@pytest.fixture(scope="module")
def report(result, why, tmp_path_factory):
    place = tmp_path_factory.mktemp("pages") / "report.html"
    inputs = {"topology": {"path": "topologies/superpod_h100_128.yaml", "sha256": "ab" * 32}}
    manifest = Manifest(clustersim="0", inputs=inputs)
    command = "clustersim run superpod_h100_128 llama3_70b --pp 4"
    place.write_text(run_page(result, command, manifest, why), encoding="utf-8")
    return place


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_opens_quietly_fits_and_can_be_read(chromium, report, width, scheme):
    with opened(chromium, report, width, scheme) as found:
        readable(found, width)
        text = found.page.inner_text("main").lower()
        words = (
            "step time/where the step goes, and what would change it/where the step goes, rank by rank/timeline/memory"
        )
        words += "/cluster and links/kernels/not modelled/how to reproduce"
        assert [one for one in words.split("/") if one not in text] == []


def test_the_answer_is_seen_first(chromium, report, why):
    """Where the step goes, the bottleneck link and the best what-ifs stand in the first window."""
    with opened(chromium, report) as found:
        rows = found.page.locator("#what-ifs tbody tr")
        for i, one in enumerate(row for row in why["what_ifs"] if row["step_time_s"] is not None):
            text = rows.nth(i).inner_text()
            assert one["name"] in text and duration(one["step_time_s"]) in text
            assert one["flags"] in " ".join(text.split()) and (one["flags"] or one["note"]) in " ".join(text.split())
        first = why["bottlenecks"][0]
        said = found.page.inner_text("#answer p:has-text('Bottleneck link')")
        assert f"{first['link']} ({first['from']} to {first['to']})" in said
        assert duration(first["step_time_s"]) in said
        assert rows.first.bounding_box()["y"] < 900
        assert found.page.locator("#answer .bars svg").bounding_box()["y"] < 900


def test_its_step_is_the_expected_one_and_the_table_says_what_the_simulated_one_lacks(chromium, report, result):
    simulated, expected = (result.summary[key] for key in ("step_time_s", "expected_step_time_s"))
    assert duration(simulated) != duration(expected)
    with opened(chromium, report) as found:
        assert found.page.locator(".card .big").first.inner_text() == duration(expected)
        row = found.page.locator("#where table").first.locator("tr", has_text="not modelled").inner_text()
        assert f"typical of {result.summary['software_level']['publishers']} publishers" in row
        assert row.count(duration(expected - simulated)) == 3  # of the critical path, the mean and a rank


def test_a_page_without_what_ifs_says_how_to_have_them(chromium, result, tmp_path):
    place = tmp_path / "report.html"
    place.write_text(run_page(result, "clustersim run", Manifest(clustersim="0")), encoding="utf-8")
    with opened(chromium, place) as found:
        assert "clustersim report RESULT" in found.page.inner_text("#answer")
        assert found.page.locator("#what-ifs").count() == 0


def test_a_table_that_is_wider_than_the_window_says_so(chromium, report):
    for width in WIDTHS:
        with opened(chromium, report, width) as found:
            for box in found.page.locator(".scrolled:visible").all():
                wider = box.locator(".wide").evaluate("one => one.scrollWidth > one.clientWidth + 1")
                assert box.locator(".hint").is_visible() == wider


def test_a_rank_that_is_not_there_is_said(chromium, report):
    with opened(chromium, report) as found:
        found.page.fill("#rank", "5000")
        assert "there is no rank 5000; this is rank 1023" in found.page.inner_text("#where .tools")
        found.page.fill("#rank", "7")
        assert "there is no" not in found.page.inner_text("#where .tools")


def test_any_rank_can_be_asked(chromium, report, result):
    with opened(chromium, report) as found:
        for cell in (0, len(result.parts) - 1):
            rank = int(result.plan.first[cell])
            found.page.fill("#rank", str(rank))
            row = found.page.locator("#where table").first.locator("tr", has_text="compute").first.inner_text()
            assert duration(result.parts[cell]["compute"]) in row


def test_the_timeline_zooms_from_the_step_to_a_kernel(chromium, report):
    with opened(chromium, report) as found:
        page, before = found.page, found.pixels("#stage canvas")
        page.get_by_role("button", name="A pass and its kernels").click()
        kernels = found.pixels("#stage canvas")
        assert kernels != before
        assert "inside: products" in page.inner_text("#picked")
        box = page.locator("#stage canvas").bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + box["height"] - 32)
        assert "×" in page.inner_text("#tip") and "bf16" in page.inner_text("#tip")  # a kernel and its shape
        page.get_by_role("button", name="Whole step").click()
        page.mouse.move(5, 5)
        page.get_by_role("button", name="Show every period").click()
        unfolded = found.pixels("#stage canvas")
        assert unfolded not in (before, kernels)
        assert found.said == []


def test_the_wheel_zooms_where_it_is_asked_to_and_the_mouse_drags(chromium, report):
    with opened(chromium, report) as found:
        page, canvas = found.page, found.page.locator("#stage canvas")
        canvas.scroll_into_view_if_needed()
        before = canvas.screenshot()
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 500, box["y"] + 70)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -300)
        page.keyboard.up("Control")
        page.wait_for_timeout(100)
        zoomed = canvas.screenshot()
        assert zoomed != before
        page.mouse.down()
        page.mouse.move(box["x"] + 300, box["y"] + 70, steps=5)
        page.mouse.up()
        assert canvas.screenshot() != zoomed


def test_keys_alone_do_what_the_mouse_does(chromium, report):
    with opened(chromium, report) as found:
        page = found.page
        page.focus("#stage canvas")
        page.keyboard.press("n")
        first = page.inner_text("#picked")
        assert "rank 0" in first and "forward pass of stage 0, microbatch 0" in first
        for _ in range(60):
            page.keyboard.press("n")
        assert "backward pass" in page.inner_text("#picked") or "forward pass" in page.inner_text("#picked")
        page.keyboard.press("ArrowDown")
        assert "rank 256" in page.inner_text("#picked")
        before = found.pixels("#stage canvas")
        for key in ("Enter", "+", "ArrowRight", "-", "ArrowLeft"):
            page.keyboard.press(key)
            after = found.pixels("#stage canvas")
            assert after != before, key
            before = after
        page.keyboard.press("Home")
        controls = "[...document.querySelectorAll('button, select, input, canvas, a[href], summary')]"
        reached = page.evaluate(f"{controls}.filter((one) => one.tabIndex < 0 && !one.disabled).length")
        assert reached == 0


def test_kernels_sort_and_memory_changes_its_rank(chromium, report, result):
    with opened(chromium, report) as found:
        page = found.page
        page.locator("#kernels th button", has_text="each").click()
        shown = page.locator("#kernels tbody tr").first.inner_text()
        page.locator("#kernels th button", has_text="each").click()
        assert page.locator("#kernels tbody tr").first.inner_text() != shown
        assert page.locator("#kernels th[aria-sort]").count() == 1
        before = found.pixels("#memory")
        page.select_option("#memory-rank", "3")
        assert found.pixels("#memory") != before


def test_it_prints_in_light_colours_without_controls(chromium, report):
    with opened(chromium, report, scheme="dark") as found:
        dark = found.pixels("#stage canvas")
        found.page.emulate_media(media="print", color_scheme="dark")
        found.page.wait_for_timeout(100)
        assert found.page.locator("#theme").is_hidden() and found.page.locator(".tools").first.is_hidden()
        assert found.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert found.pixels("#stage canvas") != dark
        found.page.emulate_media(media="screen", color_scheme="dark")
        found.page.wait_for_selector("html:not([data-theme])", state="attached")
        pdf = found.page.pdf()
        assert pdf.startswith(b"%PDF") and len(pdf) > 20_000


def test_paper_has_every_row_and_no_button(chromium, tmp_path):
    """On a screen 17 rows are seen at once, and the picture scrolls."""
    every = simulate("topologies/hgx_h100_8.yaml", "workloads/gpt2_large.yaml", {"parallelism.pp": 4}, fold=False)
    wider = simulate(
        "topologies/rail_optimized.yaml",
        "workloads/gpt2_large.yaml",
        {"cluster.nodes": 4, "parallelism.pp": 4},
        fold=False,
    )
    for result, rows in ((every, 8), (wider, 32)):
        place = tmp_path / f"{rows}.html"
        place.write_text(run_page(result, "clustersim run", Manifest(clustersim="0")), encoding="utf-8")
        with opened(chromium, place, width=800) as found:
            screen = found.page.locator("#stage canvas").bounding_box()["height"]
            found.page.emulate_media(media="print")
            found.page.wait_for_timeout(100)
            paper = found.page.locator("#stage canvas").bounding_box()["height"]
            assert paper == screen if rows == 8 else paper > 1.7 * screen
            assert paper >= 40 * rows
            assert found.page.locator("button:visible:not(th button)").count() == 0


def test_hostile_names_are_text(chromium, result, tmp_path):
    summary = json.loads(json.dumps(result.summary))
    summary |= {"name": HOSTILE, "warnings": [HOSTILE], "not_modelled": [HOSTILE]}
    summary["cluster"]["name"] = HOSTILE
    for link in summary["critical_path"]["by_link"]:
        link["what"] = HOSTILE
    other = replace(result, summary=summary)
    place = tmp_path / "hostile.html"
    place.write_text(
        run_page(other, HOSTILE, Manifest(clustersim="0", inputs={HOSTILE: {"path": HOSTILE, "sha256": HOSTILE}})),
        encoding="utf-8",
    )
    for width in WIDTHS:
        with opened(chromium, place, width) as found:
            harmless(found, width)
            assert found.page.locator("p.warning").inner_text().startswith("Warning: ")
            assert "[object" not in found.page.locator("body").inner_text()
            title = found.page.locator("h1").inner_text()
            assert "<script>" in title and "\\u202e" in title and "\u202e" not in title and len(title) < 300


def test_the_largest_cluster_opens_within_a_second_and_three_megabytes(chromium, tmp_path):
    large = simulate("topologies/fattree_3840.yaml", "workloads/gpt3.yaml")
    place = tmp_path / "large.html"
    place.write_text(run_page(large, "clustersim run fattree_3840 gpt3", Manifest(clustersim="0")), encoding="utf-8")
    assert place.stat().st_size < 3e6
    took = []
    for _ in range(3):
        with opened(chromium, place) as found:
            took.append(found.cpu())
            assert found.said == []
    assert min(took) < 1.0
