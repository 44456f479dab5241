"""Files of ASTRA-sim, NCCL, ns-3 and GraphML, and pictures."""

from __future__ import annotations

import shlex
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pytest
from route_checks import pairs

from clustersim.config.yaml import parse, read
from clustersim.errors import ConfigError, InputError
from clustersim.figures.canvas import BROKEN, SLOW, Box, svg
from clustersim.figures.canvas import GPU as GREEN
from clustersim.figures.cluster import picture
from clustersim.topology import export
from clustersim.topology.build import build, document_of, load
from clustersim.topology.describe import describe
from clustersim.topology.export import with_single_cables

SHIPPED = sorted(Path("topologies").glob("*.y*ml"))


def test_astra_sims_file_is_the_grid_that_it_says() -> None:
    theirs, ours = load("topologies/astrasim_32.yml"), load("topologies/grid_32.yaml")
    assert theirs.gpus == ours.gpus == 64
    assert theirs.launch == 0
    a, b = pairs(ours)
    one, two = theirs.route(a, b), ours.route(a, b)
    assert np.array_equal(one.links, two.links)
    assert one.latency == pytest.approx(two.latency)
    outside = one.links[[not theirs.link_name(i).startswith("nic") for i in one.links.tolist()]]
    assert theirs.capacity[outside] == pytest.approx(ours.capacity[outside])
    assert np.array_equal(theirs.capacity, ours.capacity)
    assert theirs.node.nic == 750 * 2**30  # seven links of a mesh of 8 and one to a crossbar
    assert describe(theirs)[1:] == describe(ours)[1:]


def test_a_gigabyte_of_astra_sim_is_two_to_the_thirty() -> None:
    """ASTRA-sim's validated HGX-H100: one switch of 8, 400 GB/s and 936.25 ns a link."""
    text = "topology: [Switch]\nnpus_count: [8]\nbandwidth: [400.0]\nlatency: [936.25]"
    topology = build(parse(text))
    assert topology.capacity[0] == 400 * 2**30
    assert topology.route(np.array([0]), np.array([5])).latency[0] == pytest.approx(2 * 936.25e-9)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("topology: [Ring]\nnpus_count: [4, 2]\nbandwidth: [1]\nlatency: [1]", 2, "npus_count: 2 values for the 1 dim"),
        ("topology: [Torus]\nnpus_count: [4]\nbandwidth: [1]\nlatency: [1]", 1, "'Ring', 'FullyConnected' or 'Switch'"),
        ("topology: [Ring]\nnpus_count: [4]\nbandwidth: [0]\nlatency: [1]", 3, "0 must be greater than 0"),
        ("topology: [Ring]\nnpus_count: [4]\nbandwidth: [1]", 1, "latency is missing"),
        ("topology: [Switch, Ring]\nnpus_count: [8, 9000]\nbandwidth: [1, 1]\nlatency: [1, 1]", 1, "a ring of 9000 is too"),
        ("topology: [Ring, Ring]\nnpus_count: [99999, 99999]\nbandwidth: [1, 1]\nlatency: [1, 1]", 2, "at most 2097152"),

    ],
)  # fmt: skip
def test_what_is_wrong_in_astra_sims_file(text: str, line: int, said: str) -> None:
    if said == "h200":
        assert build(parse(text)).gpu.name == "h200-sxm"
        return
    with pytest.raises(ConfigError) as caught:
        build(parse(text, "network.yml"))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"network.yml:{line}:")


GPU = """<pci busid="0000:{i:02x}:00.0" class="0x030200" device="{device}" link_speed="{speed}" link_width="16">
<gpu dev="{i}" sm="{sm}" rank="{i}" gdr="1">{links}</gpu></pci>
<pci busid="0000:a{i}:00.0" class="0x020700"><nic><net name="mlx5_{i}" dev="{i}" speed="{net}" port="1" gdr="1"/></nic></pci>"""
SWITCHED = "".join(
    f'<nvlink target="0000:0{i}:00.0" count="{n}" tclass="0x068000"/>' for i, n in enumerate((5, 5, 4, 4), 5)
)


def xml(
    folder: Path, links: str = SWITCHED, count: int = 8, sm: str = "90", device: str = "0x2330", net: str = "400000",
    speed: str = "32.0 GT/s PCIe", vendor: str = "GenuineIntel",
) -> Path:  # fmt: skip
    body = "".join(
        GPU.format(i=i, device=device, sm=sm, speed=speed, net=net, links=links.replace("SELF", f"{i:02x}"))
        for i in range(count)
    )
    path = folder / "node.xml"
    path.write_text(f'<system version="1"><cpu numaid="0" arch="x86_64" vendor="{vendor}">{body}</cpu></system>')
    return path


def test_nccls_file_of_an_h100_node_is_the_preset(tmp_path: Path) -> None:
    theirs, ours = load(xml(tmp_path)), load("topologies/hgx_h100_8.yaml")
    assert theirs.gpu.name == "h100-sxm"
    assert np.array_equal(theirs.capacity, ours.capacity)


def test_nccls_file_is_a_type_of_node(tmp_path: Path) -> None:
    xml(tmp_path, vendor="AuthenticAMD", net="200000")
    fabric = "fabric: {kind: switch, link: {rate: 200Gb/s}}"
    (tmp_path / "c.yaml").write_text(
        f"cluster: {{nodes: 4, node: {{extends: node.xml, gpus: {{count: 4}}, nics: {{count: 4}}}}}}\n{fabric}"
    )
    topology = load(tmp_path / "c.yaml")
    assert topology.gpus == 16
    assert topology.capacity[-1] == pytest.approx(25e9 * 0.97)


def test_wires_from_gpu_to_gpu(tmp_path: Path) -> None:
    """Four A100 joined by 4 links a pair; of eight V100 some pairs have one link or two."""
    pair = "".join(f'<nvlink target="0000:{i:02x}:00.0" count="4" tclass="0x030200"/>' for i in range(1, 4))
    mesh = load(xml(tmp_path, pair, 4, "80", "0x20b2", "200000", "16.0 GT/s PCIe"))
    assert {t.name for t in mesh.tiers} == {"mesh-up", "mesh-down"}
    assert set(mesh.capacity) == {4 * 25e9 * 0.8}
    uneven = "".join(
        f'<nvlink target="0000:{i:02x}:00.0" count="{n}" tclass="0x030200"/>'
        for i, n in ((1, 1), (2, 2), (3, 2), (4, 1))
    )
    cube = load(xml(tmp_path, uneven, 8, "70", "0x1db5", "100000", "8.0 GT/s PCIe"))
    assert cube.gpu.name == "v100-sxm2-32gb"
    assert {n * 25e9 * 0.8 for n in (1, 2)} <= set(cube.capacity)
    xgmi = "".join(f'<xgmi target="0000:{i:02x}:00.0" count="1"/>' for i in range(1, 8))
    amd = load(xml(tmp_path, xgmi, 8, "94", "0x74a1"))
    assert amd.gpu.name == "mi300x"
    assert len(amd.capacity) == 56


@pytest.mark.parametrize(("node", "device"), [("mi300x", "0x74a1"), ("mi350x", "0x75a0"), ("mi355x", "0x75a3")])
def test_infinity_fabric_of_a_file_is_that_of_the_shipped_node(tmp_path: Path, node: str, device: str) -> None:
    links = "".join(f'<xgmi target="0000:{i:02x}:00.0" count="1"/>' for i in range(8))
    theirs = load(xml(tmp_path, links, 8, "94", device))
    ours = load("hgx_h100_8", {"cluster.node": node})
    assert theirs.gpu == ours.gpu
    assert np.array_equal(theirs.capacity, ours.capacity)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"sm": "35", "device": "0x1"},
            "GPU with device '0x1' and sm '35': the file names no known GPU; give --gpu h100",
        ),
        ({"speed": "99 GT/s"}, "PCIe at '99 GT/s' × '16' is not known"),
        ({"speed": "9" * 400 + " GT/s"}, "is not known; write like 32.0 GT/s and 16"),
        ({"net": "fast"}, "speed of <net> is 'fast'; it is a number from 1 to 1e+08"),
        *(({"net": text}, f"speed of <net> is '{text}'; it is a number") for text in ("inf", "nan", "-100000", "1e30")),
        ({"count": 0}, "no <system> with a <gpu>"),
        ({"links": '<nvlink target="x"/>'}, "count of <nvlink> is missing; it is a whole number from 1 to 1000"),
        *(
            ({"links": f'<nvlink target="x" count="{text}"/>'}, "count of <nvlink> is ")
            for text in ("inf", "nan", "-5", "0", "1.5", "9" * 400)
        ),
        *(({"sm": text}, "sm of <gpu> is '") for text in ("-90", "inf", "nan", "9" * 400)),
        ({"sm": "9" * 5000, "device": "0x1"}, "sm of <gpu> is '999"),
    ],
)
def test_what_is_wrong_in_nccls_file(tmp_path: Path, change: dict, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load(xml(tmp_path, **change))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(("", "not valid XML"), ("<system>", "not valid XML"), ("<a/>", "no <system> with a <gpu>")),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "declares entities"),
    ],
)
def test_files_that_are_not_nccls(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.xml").write_text(text)
    with pytest.raises(InputError, match=said):
        load(tmp_path / "x.xml")


@pytest.mark.parametrize("encoding", ["nope", "utf-7", "idna", "utf-16", "UTF-8"])
def test_nccls_file_is_utf8_whatever_it_declares(tmp_path: Path, encoding: str) -> None:
    path = xml(tmp_path)
    path.write_text(f'\ufeff<?xml version="1.0" encoding="{encoding}"?>\n{path.read_text()}')
    assert load(path).gpus == 8


@pytest.mark.parametrize(
    "name",
    shlex.split("explicit_8 leaf_spine_32 rail_only_128 hpn_dual_plane_128 mi300x_8 dragonfly_132 dragonfly_plus_3420"),
)
def test_ns3_gets_every_cable_once(name: str) -> None:
    topology = with_single_cables(read(f"topologies/{name}.yaml"))
    head, switches, *rows = export.ns3(topology).splitlines()
    nodes, per_server, inner, outer, links, kind = head.split()
    assert int(nodes) == topology.gpus + int(inner) + int(outer)
    assert int(per_server) == topology.gpus_per_node
    assert [int(s) for s in switches.split()] == list(range(topology.gpus, int(nodes)))
    assert len(rows) == int(links)
    assert kind == topology.gpu.name.split("-")[0].upper()
    graph = nx.MultiGraph()
    for row in rows:
        a, b, rate, delay, loss = row.split()
        assert rate.endswith("Gbps")
        assert delay.endswith("ms")
        assert loss == "0"
        graph.add_edge(int(a), int(b))
    assert sorted(graph) == list(range(int(nodes)))
    assert nx.is_connected(graph)
    inside = sum(t.links for t in topology.tiers if t.name in ("nvlink-up", "mesh-up"))
    assert len(rows) == topology.counts.get("cables", 0) + inside


def test_ns3_gets_no_dead_cable_and_few_nics_go_to_their_first_gpu() -> None:
    faults = "faults: [{link: 'nic[1]', dead: true}, {node: 1, dead: true}]"
    text = f"cluster: {{nodes: 3, node: {{extends: hgx-h100, nics: {{count: 2}}}}}}\nfabric: {{kind: switch}}\n{faults}"
    rows = export.ns3(with_single_cables(parse(text))).splitlines()[2:]
    fabric = [row.split() for row in rows if row.split()[1] == "18"]
    assert [row[0] for row in fabric] == ["0", "8", "12"]
    assert fabric[0][2:] == ["384Gbps", "0.0005ms", "0"]


def test_graphml_is_read_back() -> None:
    topology = load("topologies/explicit_8.yaml")
    graph = nx.parse_graphml(export.graphml(topology))
    links = [data for _, _, data in graph.edges(data=True) if "link" in data]
    assert sorted(data["link"] for data in links) == list(range(len(topology.capacity)))
    assert sum(data["capacity_bytes_per_s"] for data in links) == pytest.approx(topology.capacity.sum())
    assert sum(data["latency_s"] for data in links) == pytest.approx(topology.latency.sum())
    assert not any({"capacity", "latency"} & set(data) for _, _, data in graph.edges(data=True))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_topology_is_drawn(path: Path) -> None:
    text = svg(picture(document_of(path)))
    root = ElementTree.fromstring(text)
    topology = load(path)
    words = " ".join(e.text or "" for e in root.iter() if e.tag.endswith("text"))
    assert topology.name in words
    for name in ("leaf", "spine", "core"):
        if count := topology.counts.get(f"{name}_switches"):
            assert f"{int(count):,} {name} switch" in words
    assert len(text) < 100_000
    if path.stem in ("leaf_spine_32", "explicit_8", "mi300x_16"):
        assert text.count(f'fill="{GREEN}"') == topology.gpus
    wide, high = (float(root.get(key, "0")) for key in ("width", "height"))
    for shape in root.iter():
        for key, most in (("x", wide), ("cx", wide), ("x1", wide), ("y", high), ("cy", high), ("y2", high)):
            assert 0 <= float(shape.get(key, "0")) <= most


@pytest.mark.parametrize(
    "fabric",
    [
        "{kind: torus, dims: [4, 2], link: {rate: 1GB/s}}",
        "{kind: torus, dims: [2, 2, 2], link: {rate: 1GB/s}}",
        "{kind: dragonfly, a: 2, p: 4, h: 4, link: {rate: 1GB/s}}",
        "{kind: dragonfly_plus, leaves: 2, spines: 2, p: 2, h: 3, link: {rate: 1GB/s}}",
        "{kind: switch}",
        "{kind: grid, dims: [{kind: switch, size: 8, rate: 1GB/s}]}",
    ],
)
@pytest.mark.parametrize("faults", ["", "faults: [{node: 1, dead: true}, {link: 'nic[3]', dead: true}]"])
def test_small_networks_are_drawn_whole(fabric: str, faults: str) -> None:
    node = "{extends: hgx-h100, gpus: {count: 2}, nics: {count: 2}}"
    text = svg(picture(parse(f"cluster: {{name: <b>, nodes: 8, node: {node}}}\nfabric: {fabric}\n{faults}")))
    assert "&lt;b&gt;" in text
    words = [e.text or "" for e in ElementTree.fromstring(text).iter() if e.tag.endswith("text")]
    assert any(word.startswith(("node 7", "nodes 7", "7", "nodes 6–7")) for word in words) or "8 nodes" in words


def test_the_picture_in_the_docs_is_the_present_one() -> None:
    command = "clustersim show topologies/fattree_3840.yaml --draw docs/images/fattree_3840.svg"
    drawn = svg(picture(document_of("topologies/fattree_3840.yaml")))
    assert Path("docs/images/fattree_3840.svg").read_text() == drawn, f"run {command}"


def test_show_writes_files(command_line, tmp_path: Path) -> None:
    for arguments, start in (
        (["--draw", "a.svg"], "<svg"),
        (["--export", "ns3", "a.txt"], "82 8 8 10"),
        (["--export", "graphml", "a.xml"], "<?xml"),
    ):
        target = tmp_path / arguments[-1]
        code, out, err = command_line("show", "topologies/explicit_8.yaml", *arguments[:-1], str(target))
        if start != "82 8 8 10":
            assert target.read_text().startswith(start)
        else:
            assert target.read_text().split()[:4] == ["76", "8", "8", "4"]
        assert code == 0
        assert "diameter" in out
        assert str(target) in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--draw", "/proc/none/a.svg"], "/proc/none/a.svg: cannot be written"),
        (["--export", "ns4", "a"], "--export ns4: no such format; did you mean 'ns3'?"),
    ],
)
def test_show_says_what_cannot_be_written(command_line, arguments: list[str], said: str) -> None:
    code, out, err = command_line("show", "topologies/explicit_8.yaml", *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_a_png_needs_matplotlib(command_line, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("clustersim.extras.find_spec", lambda name: None)
    message = (
        'clustersim: a PNG or PDF needs matplotlib, which is not installed; run pip install "clustersim[plots]", '
        "or write a name that ends in .svg\n"
    )
    assert command_line("show", "topologies/explicit_8.yaml", "--draw", str(tmp_path / "a.png")) == (2, "", message)


@pytest.mark.parametrize("name", ["explicit_8", "fattree_3840", "hgx_h100_8", "torus_4096", "dragonfly_132"])
def test_a_png_is_the_picture_of_the_svg(command_line, tmp_path: Path, name: str) -> None:
    """Two dots a pixel, and the colour of every large box."""
    from matplotlib.image import imread

    file, target = f"topologies/{name}.yaml", tmp_path / "a.PNG"
    assert command_line("show", file, "--draw", str(target))[0] == 0
    dots, canvas = imread(target), picture(document_of(file))
    assert dots.shape[:2] == (round(2 * canvas.height), round(2 * canvas.width))
    colours = (dots[..., :3] * 255).round().astype(int) @ [1 << 16, 1 << 8, 1]
    seen = {f"#{colour:06x}" for colour in np.unique(colours).tolist()}
    boxes = [
        shape for shape in canvas.shapes if isinstance(shape, Box) and len(shape.fill) == 7 and min(shape.size) > 6
    ]
    assert len(boxes) > 3
    assert {box.fill for box in boxes} <= seen


def test_show_needs_a_file_to_draw(command_line) -> None:
    code, _, err = command_line("show", "--schedule", "1f1b", "--draw", "a.svg")
    assert code == 2
    assert "give a topology file first" in err


def words(text: str) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]


def test_what_is_slow_or_dead_is_marked_in_the_picture() -> None:
    sick = ["{node: 5, dead: true}", "{link: 'nic[3]', rate: 100Gb/s}", "{gpu: 17, slowdown: 1.3}"]
    sick += ["{link: 'trunk[0]', rate: 100GB/s}", "{link: 'trunk[3]', dead: true, cables: 16}"]
    sound = Path("topologies/explicit_8.yaml").read_text()
    text = svg(picture(parse(f"{sound}\nfaults: [{', '.join(sick)}]")))
    assert text.count(f'stroke="{SLOW}"') == 2  # the cables of node 0 and a trunk
    assert text.count(f'stroke="{BROKEN}"') == 1
    assert text.count(f'fill="{SLOW}"') == 1  # a GPU
    said = words(text)
    assert "8 nodes, 1 dead" in said
    assert any(line.startswith("7 of 8 nodes") for line in said)
    assert any("slow GPUs: 1" in line and "dead: 1 node; 16 cables" in line for line in said)
    assert not {SLOW, BROKEN} & set(svg(picture(parse(sound))).split('"'))


def test_a_grid_is_drawn_by_what_joins_its_dimensions() -> None:
    said = words(svg(picture(document_of("topologies/grid_32.yaml"))))
    assert {"dim0: mesh of 8", "dim1: crossbar of 4"} <= set(said)
    assert "64 routers (2 × (8 × 4)), 352 cables with those of the NICs" in said
