"""What clusters cost and draw: bills of published orders, published energies, and laws of prices."""

from __future__ import annotations

import json

import pytest

from clustersim.costs import figures
from clustersim.costs.bill import bill, rates, step_costs
from clustersim.errors import ConfigError
from clustersim.topology.build import load


def items(**cluster):
    keys = {"cluster.nodes": cluster["nodes"], "cluster.gpu": cluster.get("gpu", "h100")}
    return {one.what: one for one in bill(load("rail_optimized", keys), figures.load())}


def test_modules_and_fibres_are_those_of_a_published_order():
    """A 256-GPU H100 order (Vitex): 256 NIC modules, 256 fibres to 128 twin-port leaf modules; then those between switches."""
    found = items(nodes=32)
    assert found["modules at NICs"].number == 256
    assert found["modules at switches"].number == 256 + 2 * 256  # ports: half as many twin-port modules
    assert found["switches"].number == 8 + 4


@pytest.mark.parametrize(("nodes", "published"), [(1024, 48_000), (4096, 51_600)])
def test_an_h100_costs_with_all_around_it_what_was_published(nodes, published):
    """8,192 and 32,768 GPUs, tech-talk-cto, August 2024."""
    total = sum(one.usd for one in items(nodes=nodes).values())
    assert total / (8 * nodes) == pytest.approx(published, rel=0.12)


def test_the_network_is_a_share_of_the_gpus_as_published():
    found = items(nodes=1024)
    assert 0.03 < sum(one.usd for what, one in found.items() if what != "nodes") / found["nodes"].usd < 0.25


def test_an_h100_draws_what_was_published():
    """100,000 H100 draw more than 150 MW; their IT load alone is about 1.4 kW a GPU (SemiAnalysis)."""
    found = rates(load("rail_optimized", {"cluster.nodes": 4096}), figures.load())
    assert 1250 < found.power / 32768 < 1650


def test_the_energy_of_published_runs_follows_from_power_and_time():
    """Llama 3.1 405B: 30.84 M GPU-hours at 700 W are 21.6 GWh, and 8,930 t of CO2e at 414 g (model card)."""
    tdp = 30.84e6 * 0.7
    assert tdp == pytest.approx(21.6e6, rel=0.01)
    assert tdp * 414e-6 == pytest.approx(8930, rel=0.01)
    cluster = load("rail_optimized", {"cluster.nodes": 2048})
    seconds = 30.84e6 * 3600 / 16384
    ours = rates(cluster, figures.load()).costs(seconds)
    assert 1.6 < ours["kwh"] / tdp < 2.2  # whole nodes, switches and the building, where the card counts GPUs alone


def test_rent_is_gpu_hours_times_the_price():
    """DeepSeek-V3: 2.788 M H800-hours at 2 USD are 5.576 M."""
    cluster = load("rail_optimized", {"cluster.nodes": 256})
    found = rates(cluster, figures.load(rent=2.0))
    assert found.costs(2.788e6 * 3600 / 2048)["usd"] == pytest.approx(5.576e6)
    step = step_costs(found, 10.0, 4e6)
    assert step["usd_per_1t_tokens"] == pytest.approx(step["usd_per_step"] * 1e12 / 4e6)
    assert step["co2_kg_per_step"] == pytest.approx(step["kwh_per_step"] * 0.37)


def test_every_default_has_a_source_and_a_date():
    def walk(data, place=""):
        for key, value in data.items():
            if isinstance(value, dict):
                walk(value, f"{place}.{key}")
        if "price" in data or "value" in data:
            assert data["source"] not in ("", "given"), place
            assert data["date"][:2] == "20", place

    found = figures.load().model_dump()
    walk(found)
    for switch in found["switch"]:
        walk(switch)


def test_a_file_replaces_figures_one_by_one(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("power: {electricity: 0.06, pue: {value: 1.1, source: ours}}\nrent: {h100-sxm: 1.5}\n")
    found = figures.load(file)
    assert (found.power.electricity.value, found.power.pue.value, found.power.carbon.value) == (0.06, 1.1, 370)
    assert found.rent["h100-sxm"].price == 1.5
    assert found.rent["b200-sxm"] == figures.load().rent["b200-sxm"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rent: {h100-sxm: 0}", "mine.yaml:1:18: rent.h100-sxm.price"),
        (
            "rent: {h100-sxm: 2 dollars}",
            "mine.yaml:1:18: rent.h100-sxm.price: '2 dollars' must be a number alone, in the unit",
        ),
    ],
)
def test_prices_that_cannot_be_are_one_sentence(tmp_path, text, sentence):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        figures.load(file)
    assert sentence in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("price", [0.0, -1.0])
def test_a_price_that_is_none_is_one_sentence(price):
    with pytest.raises(ConfigError, match=r"^--price: rent\..*0"):
        figures.load(rent=price)


def test_a_node_that_says_no_power_draws_what_is_usual_around_its_gpus():
    found = {one.what: one for one in bill(load("mi300x_16"), figures.load())}
    assert found["nodes"].power == pytest.approx(8 * 750 * 1.82)
    assert found["nodes"].price is None
    assert rates(load("mi300x_16"), figures.load()).capex is None


def test_a_node_costs_in_proportion_to_its_gpus_unless_its_price_is_given():
    own = load("rail_optimized", {"cluster.nodes": 2, "cluster.node.gpus.count": 4, "cluster.node.nics.count": 4})
    assert bill(own, figures.load())[0].price == figures.load().node["h100-sxm"].price / 2
    given = figures.load().model_copy(update={"node": {"h100-sxm": figures.NodePrice(price=200_000)}})
    assert bill(own, given)[0].price == 200_000


def test_what_is_faster_than_all_that_is_sold_has_no_price():
    found = bill(load("torus_4096"), figures.load())  # 2,400 Gb/s
    assert [one.what for one in found if one.price is None] == ["switches", "modules at NICs", "modules at switches"]
    assert rates(load("torus_4096"), figures.load()).owned is None


def test_show_prints_the_bill_and_its_sums(command_line, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("node: {h100-sxm: 200000}\n")
    for words in ([], ["--costs", str(prices)]):
        items = json.loads(command_line("show", "superpod_h100_128", *words, "--json")[1])["bill"]
        assert [one["what"] for one in items] == [one.what for one in bill(load("superpod_h100_128"), figures.load())]
        assert all(one["date"] for one in items)
        assert items[0]["usd_each"] == (200_000 if words else 310_000)
        *_, last = command_line("show", "superpod_h100_128", *words)[1].splitlines()
        assert last.split()[:3] == ["in", "all", f"{sum(one['number'] * one['usd_each'] for one in items):,.0f}"]


def test_routers_of_a_dragonfly_are_switches_that_cost_something():
    found = {one.what: one for one in bill(load("dragonfly_132"), figures.load())}
    assert (found["switches"].number, found["cables"].number) == (264, 2508)
    assert found["modules at NICs"].number + found["modules at switches"].number == 2 * 2508
    assert all(one.usd > 0 for one in found.values())


def test_a_run_says_what_its_step_costs_if_it_is_asked(command_line):
    run = ("run", "hgx_h100_8", "gpt3_xl", "--predictor", "roofline", "--no-save")
    asked = ("--json", "--json --cost", "--json --price 7.8", "--cost")
    found = {words: command_line(*run, *words.split())[1] for words in asked}
    plain, asked, dear = (json.loads(found[key]) for key in ("--json", "--json --cost", "--json --price 7.8"))
    assert "costs" not in plain
    assert asked["costs"]["usd_per_step"] == pytest.approx(8 * 3.9 * asked["step_time_s"] / 3600)
    assert dear["costs"]["usd_per_step"] == pytest.approx(2 * asked["costs"]["usd_per_step"])
    assert {key: value for key, value in asked.items() if key != "costs"} == plain
    assert "\nwhat it costs\n  a step" in found["--cost"]


def test_people_are_part_of_what_is_owned_and_electricity_is_said_in_dollars(tmp_path):
    (tmp_path / "costs.yaml").write_text("owned: {people: 1000}\n")
    cluster = load("rail_optimized", {"cluster.nodes": 4, "cluster.gpu": "h100"})
    alone, staffed = (rates(cluster, one) for one in (figures.load(), figures.load(tmp_path / "costs.yaml")))
    year = 8766 * 3600
    assert (staffed.owned - alone.owned) * year == pytest.approx(1000 * 32 / 0.8)
    costs = step_costs(alone, 2.0, 1e6)
    assert costs["usd_power_per_step"] == pytest.approx(costs["kwh_per_step"] * 0.12)
    assert costs["usd_power_per_step"] < costs["usd_owned_per_step"]
