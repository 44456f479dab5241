"""The cluster of a measured run, in the form of a topology file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clustersim.config.evidence import Evidence
from clustersim.config.overrides import replace as put
from clustersim.config.topology import KINDS_OF, Host, wider_slots
from clustersim.convert.override import nodes_by_gpu, preset_node
from clustersim.errors import nearest
from clustersim.hardware.gpus import everything, load, spelled
from clustersim.predictors.power import STEP, WIDTH, step_without
from clustersim.validate.runs import Refusal, Run
from clustersim.validate.strangers import EVERYTHING, Knowledge
from clustersim.validate.workload import InputDraft, framework_of

STAND_INS: Mapping[str, str] = {
    "v100-sxm2-16gb": "dgx1-v100",
    "v100-sxm3-32gb-450w": "dgx1-v100",
    "h20": "hgx-h100",
    "gh200-144gb": "gh200-quad",
    "mi350x": "mi355x",
}
"""{GPU: shipped node that stands in}, for GPUs of which no node is shipped or another one fits better."""
CLOUDS: Mapping[tuple[str, str], str] = {
    ("aws efa", "hgx-h100"): "aws-p5",
    ("omni-path", "dgx1-v100"): "jean-zay-v100",
    ("omni-path", "hgx-a100"): "jean-zay-a100",
}
"""{(words of the source in lower case, node without them): shipped node of a cloud or site}"""
ROCE = re.compile(r"(?<!/)\broce\b")
"""Pattern of networks that are RoCE; `IB/RoCE` is undecided."""
LIBRARIES: Mapping[str, dict[str, str]] = {"aws-p5": {"proto": "Simple"}}
"""{node of a cloud: NCCL settings of its network plugin}. AWS's plugin sets NCCL_PROTO=simple unless the adapters write 128 bytes
in order; whether it does so on P5 depends on its release (aws/aws-ofi-nccl, src/platform-aws.c)."""
PLUGIN = Evidence(source="ULTRA's steps with tp 16 and 32 say that it was set", read_from=("ULTRA",))
SHARED = Evidence(
    source="VTRAINM's steps: 4 NICs of 200 Gb/s for 8 GPUs that have 100 each", read_from=("VTRAINM", "VTRAINS")
)
"""Evidence that GPUs with less than their usual NIC rate share NICs; without it each has a slower NIC."""
FOREIGN = re.compile(
    r"tpu|trainium|trn[12]|gaudi|ascend|cerebras|inferentia|ponte vecchio|intel|graphcore|biren|cambricon"
)
"""Pattern of makers and accelerators without shipped figures."""
FABRIC: Mapping[str, Any] = {"kind": "mesh", "links_per_peer": 1, "link": "50GB/s", "payload_efficiency": 0.72}
"""Infinity Fabric between the dies of an MI250X node: 8 links each; a link's payload by RCCL,
src/graph/topo.h (MI200_XGMI_WIDTH)."""
PLAIN: Mapping[str, Any] = {"scale_up": {"kind": "none"}, "host": {"pcie": "gen4x16"}}
"""Node of GPUs without links between them, where no node with the GPU is shipped."""
RELEASES: Mapping[int, str] = {2022: "2.18", 2023: "2.19", 2024: "2.22", 2025: "2.27", 2026: "2.29"}
"""{year: NCCL's release in its containers} (NVIDIA's PyTorch release notes); earlier years use the first."""
DGX_2H = "v100-sxm3-32gb-450w"
"""V100 in nodes of 16 GPUs, which are not SXM2 boards (arXiv 1909.08053, section 5: 32 DGX-2H)."""
RACK = 64
"""GPUs per NVL72 rack in a job that spans several racks: 72 has no large power of two as a factor."""


def cluster(run: Run, view: Knowledge = EVERYTHING) -> InputDraft:
    """Return the topology of a run. Raises Refusal for a GPU that is not shipped, or without a number of GPUs.

    A node is one NVLink domain with its usual NICs, shared if the row has a lower rate; the fabric is one non-blocking switch.
    """
    without, sources = view.without, set[str]()
    gpu_words = run.gpu.lower()
    run = replace(run, gpu=_gpu(run.gpu), num_gpus=_gpus(run))
    gpus, domain, assumed = _domain(run)
    if run.gpu == "v100-sxm2-32gb" and domain == 16:
        run = replace(run, gpu=DGX_2H)
        assumed.append(f"gpus.model: {DGX_2H} (16 in a node with NVSwitches)")
    nodes = -(-gpus // domain)
    preset = _preset(run, gpu_words, view, sources)
    node = _node(run, preset, domain)
    if not preset:
        links = "mesh of Infinity Fabric" if node["scale_up"] == FABRIC else "no links of their own"
        pcie = PLAIN["host"]["pcie"]
        assumed.append(f"node: {domain} {run.gpu} on PCIe slots of {pcie} with {links}, as no node of them is shipped")
    rate = run.nic_gbps_per_gpu or None
    if nodes > 1:
        assumed.append("fabric: one switch that never blocks")
        if rate is None:
            assumed.append(f"nic_gbps_per_gpu: that of {_usual_node(run.gpu) or 'a NIC of 200 Gb/s'}")
    node["nics"] = _nics(preset, domain, rate, without not in SHARED.read_from)
    if nodes > 1 and ROCE.search(run.original_interconnect.lower()) and "words roce" not in view.hidden:
        sources.add("words roce")
        node["nics"]["transport"] = "roce"
    host = preset_node(preset).host if preset else Host.model_validate(PLAIN["host"])
    slots = [host, *wider_slots(host)]
    slot = next((option.pcie for option in slots if option.raw >= (rate or 0.0) * 1e9 / 8), slots[-1].pcie)
    if slot != host.pcie:
        node["host"] = {"pcie": slot}
        assumed.append(f"host.pcie: {slot} (a NIC of {rate:g} Gb/s)")
    spec: dict[str, Any] = {"cluster": {"name": run.id, "nodes": nodes, "node": node}}
    if nodes > 1:
        spec["fabric"] = {"kind": "switch"}
        assumed += _library(spec, run, preset, view)
    if without:
        _set_unseen_figures(node, preset, run.gpu, without)
    return InputDraft(spec, assumed, sources)


def _set_unseen_figures(node: dict[str, Any], preset: str, gpu: str, publisher: str) -> None:
    """Replace the figures of `node` and its GPU that were read from a publisher's steps by their values without them."""
    for key, evidence in (preset_node(preset).evidence if preset else {}).items():
        if publisher in evidence.read_from:
            put(node, tuple(key.split(".")), evidence.without(publisher), key)
    board = load(gpu)
    shares: dict[str, Any] = {str(dtype): share for dtype, share in board.sustained.items()}
    for key, evidence in board.evidence.items():
        if publisher in evidence.read_from:
            shares[key.partition(".")[2]] = evidence.without(publisher)
    law = step_without(board, publisher)
    if law is not STEP:
        shares = {dtype: min(1.0, law.share(board, dtype)) for dtype in board.matrix if dtype in WIDTH} | shares
    if shares != board.sustained:
        node["gpus"]["sustained"] = {dtype: share for dtype, share in shares.items() if share is not None}


def _gpus(run: Run) -> int | None:
    """Return the number of GPUs of a run; if missing, the product of its degrees, or None if tp, pp or dp is missing."""
    if run.num_gpus or None in (run.tp, run.pp, run.dp):
        return run.num_gpus
    return (run.tp or 1) * (run.pp or 1) * (run.dp or 1) * (run.cp or 1)


def _gpu(name: str) -> str:
    """Return the name of a shipped GPU from any spelling of it. Raises Refusal if it is not shipped."""
    if (match := spelled(name)) is not None:
        return match.name
    known = [gpu.name for gpu in everything()]
    problem = f"{name} is not shipped; {nearest(name, known)}known: {', '.join(known)}"
    if maker := FOREIGN.search(name.lower()):
        problem = f"{name}: {maker[0].title()} accelerators are not modelled, NVIDIA's and AMD's are"
    raise Refusal("unknown GPU", problem)


def _preset(run: Run, gpu: str, view: Knowledge, sources: set[str]) -> str:
    """Return the shipped node of the cloud that a run's source names, else of its GPU; "" if there is none.

    gpu: the source's words in lower case, as an A800 is an A100 with slower links. Adds the node of a cloud to `sources`.
    """
    usual, network = "hgx-a800" if "a800" in gpu else _usual_node(run.gpu), run.original_interconnect.lower()
    for (words, node), cloud in CLOUDS.items():
        if words in network and node == usual and f"node {cloud}" not in view.hidden:
            sources.add(f"node {cloud}")
            return cloud
    return usual


def _usual_node(gpu: str) -> str:
    """Return the shipped node of a GPU; "" if there is none, or if it has no scale-up links or only pairs of linked GPUs."""
    usual = STAND_INS.get(gpu) or nodes_by_gpu().get(gpu, "")
    return usual if usual and preset_node(usual).scale_up.kind not in ("none", "pairs") else ""


def _library(spec: dict[str, Any], run: Run, preset: str, view: Knowledge) -> list[str]:
    """Set `nccl` in the topology `spec`; return the assumptions in words. preset: name of the shipped node, or "".

    The release is of the run's year; the framework's settings apply only with pp > 1, a cloud's unless `view` is without them.
    """
    assumed = []
    if run.year is not None:
        version = RELEASES[max(min(run.year, max(RELEASES)), min(RELEASES))]
        spec["nccl"] = {"version": version}
        assumed.append(f"nccl.version: {version} (of {run.year})")
    framework = framework_of(run, view)
    for key, default in framework.nccl.items():
        if default.value is not None and (run.pp or 1) > 1:
            spec.setdefault("nccl", {})[key] = default.value
            assumed.append(f"nccl.{key}: {default.value} ({framework.name})")
    if preset in LIBRARIES and view.without not in PLUGIN.read_from:
        spec["nccl"] = {**spec.get("nccl", {}), **LIBRARIES[preset]}
        assumed.append(f"nccl.proto: {LIBRARIES[preset]['proto']} ({preset})")
    return assumed


def _nics(preset: str, count: int, rate: float | None, shared: bool = True) -> dict[str, Any]:
    """Return the key `nics` of a node that gives each of `count` GPUs `rate` Gb/s (None: the rate of a usual NIC).

    For a lower rate GPUs share usual NICs if they divide evenly and `shared` is true; otherwise each GPU has a slower NIC.
    """
    nics = preset_node(preset).nics if preset else None
    port = 200.0 if nics is None else nics.rate * 8 / 1e9
    sharers = port / rate if rate else 1.0
    if (shared or sharers <= 1) and sharers.is_integer() and count % sharers == 0:
        return {"count": int(count / sharers), "rate": f"{port:g}Gb/s"}
    return {"count": count, "rate": f"{rate:g}Gb/s"}


def _domain(run: Run) -> tuple[int, int, list[str]]:
    """Return (GPUs of the run, GPUs per NVLink domain, assumptions in words). Raises Refusal if num_gpus is blank."""
    if run.num_gpus is None:
        raise Refusal("incomplete source", "num_gpus is blank")
    assumed = []
    per_node, domain = run.gpus_per_node, run.nvlink_domain
    if per_node is None:
        per_node = 4 if run.gpu.startswith(("gb", "gh")) else 8
        assumed.append(f"gpus_per_node: {per_node}")
    if domain is None:
        domain = 72 if run.gpu.startswith("gb") else per_node
        assumed.append(f"nvlink_domain: {domain}")
    if domain == 72 and run.num_gpus > domain:
        assumed.append(f"racks: {RACK} GPUs of each")
        domain = RACK
    return run.num_gpus, domain, assumed


def _node(run: Run, preset: str, domain: int) -> dict[str, Any]:
    """Return a node of `domain` GPUs that extends the shipped node `preset`, or PLAIN for "". It has no NICs yet."""
    node: dict[str, Any] = {**({"extends": preset} if preset else PLAIN), "gpus": {"model": run.gpu, "count": domain}}
    if run.gpu in ("mi210", "mi250", "mi250x") and domain > 1:
        node["scale_up"] = dict(FABRIC)
    if preset == "dgx1-v100" and domain > 8:
        node["scale_up"] = {"kind": "nvswitch"}  # DGX-2
    if domain == 1 and preset and preset_node(preset).scale_up.kind in KINDS_OF["links_per_peer"]:
        return node | {"scale_up": {"kind": "none"}}  # no peer to wire it to
    if preset == "gh200-quad" and domain != 4:
        switch = {"kind": "nvswitch", "links_per_gpu": 18, "multicast": True}  # NVL32 has switches
        node["scale_up"] = switch if domain > 4 else {"links_per_peer": 18 // (domain - 1)}
    return node
