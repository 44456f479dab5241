"""`clustersim goodput --step 5s --nodes 2048 --gpu h100`: the share of a run's time that is progress, and how to raise it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from clustersim.cli.commands import option, option_group
from clustersim.cli.options import Blocking, CommandOutput, ReliabilityFile, quantity
from clustersim.errors import InputError

if TYPE_CHECKING:
    from clustersim.planning.reliability import Goodput

REPLICA, PARAMETERS = 128, 25e6
"""GPUs of a replica, and default parameters per GPU: those of Llama 3 405B on 16,384 H100 (arXiv:2407.21783, table 4)."""


def goodput(
    step: Annotated[str, option("Time of a step if nothing disturbs it, such as 5s.", "TIME")],
    nodes: Annotated[int, option("Number of nodes of the job.", min=1, max=1_000_000)],
    *,
    gpu: Annotated[str, option("The GPU: a type of node.")] = "h100",
    parameters: Annotated[
        str | None, option("Parameters of the model, such as 405B; default 25 million a GPU.", "N")
    ] = None,
    rack: Annotated[int, option("Nodes per rack, which fail together.", min=1, max=10_000)] = 4,
    blocking: Blocking = False,
    reliability: ReliabilityFile = None,
    output: Annotated[CommandOutput, option_group(CommandOutput, "as_json")],
) -> None:
    """Print how much of a run's time is progress on a cluster with failures: checkpoints, restarts, spares and storage to buy."""
    from clustersim.config.shipped import find
    from clustersim.planning import reliability as rules
    from clustersim.planning.request import amount
    from clustersim.topology.build import load as build

    how, length = rules.load(reliability), quantity("--step", step, "time")
    if not length:
        raise InputError(f"--step {step}: write a time above 0, such as 5s")
    node = build(find("topologies", "rail_optimized"), {"cluster.gpu": gpu, "cluster.nodes": 1})
    gpus = nodes * node.gpus
    held = amount("--parameters", parameters, "405B") if parameters else PARAMETERS * gpus
    copies = max(1, gpus // REPLICA)

    def at(times: float) -> Goodput:
        return rules.goodput(rules.faster(how, times), nodes, gpus, held, copies, not blocking)

    found = at(1.0)
    domains = rules.rack_spares(how, found, nodes, rack)
    storage = rules.enough_storage(how, at) * gpus
    output.show(
        "goodput",
        lambda: rules.fields(found, domains, length, gpus, storage),
        lambda: rules.lines(found, domains, length, (nodes, gpus, node.gpu.name), storage, how),
    )
