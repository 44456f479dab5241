"""A fat tree of 1 to 5 tiers, with or without rails, oversubscribed or not."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.config.fabric import ExplicitRouting, FatTree, Link, Routing, Tier
from clustersim.hardware.constants import FIBRE
from clustersim.topology.assemble import assemble
from clustersim.topology.fat_tree_routing import FatTreeHops
from clustersim.topology.fat_tree_wiring import ROUNDED, Level, Tree, complete_tree
from clustersim.topology.model import Topology
from clustersim.topology.specs import BuiltFabric, LinkRange, NodeSpecs, both_ways
from clustersim.units import plural

SPEC = FatTree


def build(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `fat_tree` fabric. Raises ConfigError if its ports do not fit."""
    return assemble(cluster, "fat_tree", network(cluster, cluster.section(FatTree)))


# Common names of fat trees. Each has its own file, because a name in YAML is a file.


def leaf_spine(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `leaf_spine` fabric. Raises ConfigError if its ports do not fit or it has not two tiers."""
    spec = cluster.section(FatTree)
    spec = spec if spec.tiers else spec.model_copy(update={"tiers": (Tier(), Tier())})
    if len(spec.tiers) != 2:
        many = f"a leaf_spine has two tiers, a leaf and a spine, not {len(spec.tiers)}"
        raise cluster.error(("fabric", "tiers"), f"fabric.tiers: {many}; use kind: fat_tree for other trees")
    return assemble(cluster, "leaf_spine", network(cluster, spec))


def rail_optimized(cluster: NodeSpecs) -> Topology:
    """Return a `rail_optimized` topology: NIC j of every node is on a leaf of rail j. Raises ConfigError if ports do not fit."""
    return assemble(cluster, "rail_optimized", network(cluster, cluster.section(FatTree, rails="optimized")))


def rail_only(cluster: NodeSpecs) -> Topology:
    """Return the topology of a `rail_only` fabric: rails without connection (Wang et al. 2023, "Rail-only").

    Traffic to another rail first goes to the GPU of that rail inside the node, as with NCCL's PXN. Raises ConfigError if its
    ports do not fit, or if nodes cannot change rails.
    """
    spec = cluster.section(FatTree, rails="optimized", rail_planes=True)
    if spec.rails == "none" or not spec.rail_planes:
        key = "rails" if spec.rails == "none" else "rail_planes"
        what = "rail_only keeps its rails apart; drop it, or use kind: fat_tree"
        raise cluster.error(("fabric", key), f"fabric.{key}: {what}")
    if cluster.node.scale_up.kind == "none" and max(cluster.nic_counts) > 1:
        reason = "rails that nothing joins need links between the GPUs of a node to change rails over"
        what = f"scale_up is missing; {reason}; add scale_up, or use kind: rail_optimized"
        raise cluster.error((*cluster.at, "scale_up"), what)
    return assemble(cluster, "rail_only", network(cluster, spec))


def network(cluster: NodeSpecs, spec: FatTree) -> BuiltFabric:
    """Return the network of a fat tree. Raises ConfigError if the tree of `spec` cannot connect the nodes."""
    check_routing(cluster, spec.routing)
    spec, link, built = complete_tree(cluster, spec)
    hops = FatTreeHops(built, spec.routing)
    if not hops.adaptive:
        cluster.check_links(hops.firsts[-1] - hops.firsts[1], ("routing", "mode"), "`mode: adaptive` or fewer nodes")
    return BuiltFabric(
        ranges=tuple(_ranges(spec, link, hops)),
        hops=hops,
        port=hops.port,
        ends=hops.ends,
        counts=_counts(cluster, spec, link, built),
        fanouts=_fanouts(cluster, built),
        rate=link.rate * link.efficiency * spec.planes,
        rails=_rails_kept(cluster, built),
        paths=spec.routing.qps * spec.planes,
        reduction=spec.reduction,
        warnings=tuple(_not_full(cluster, spec, built)),
    )


def _not_full(cluster: NodeSpecs, spec: FatTree, built: Tree) -> Iterator[str]:
    """Yield a warning on the oversubscription of leaves with too few nodes for the ratio in the file."""
    ratio, leaf = spec.oversubscription, built.tiers[0]
    if ratio and leaf.up and cluster.nodes > 1 and leaf.down < ratio * leaf.up * (1 - ROUNDED):
        few = f"leaves with {plural(leaf.down, 'NIC', 'NICs')} and {plural(leaf.up, 'uplink', 'uplinks')}"
        yield f"fabric.oversubscription: {few} are {leaf.down / leaf.up:.4g} : 1, not {ratio:g} : 1; more nodes fill them"


def _rails_kept(cluster: NodeSpecs, built: Tree) -> int:
    """Return the rails that traffic stays on: all with PXN (paths.cc); 1 without rails, or for RCCL (no PXN) below a spine."""
    crosses = cluster.node.scale_up.kind == "mesh" and built.leaves.parts == 1
    return 1 if crosses else max(1, built.leaves.rails)


def check_routing(cluster: NodeSpecs, routing: Routing | ExplicitRouting) -> None:
    """Raise ConfigError for several queue pairs without a hash (`ecmp`) to separate them."""
    if routing.qps > 1 and routing.mode != "ecmp":
        what = f"qps is for `mode: ecmp`; {routing.mode} sends one flow a pair"
        raise cluster.error(("fabric", "routing", "qps"), what)


def _ranges(spec: FatTree, link: Link, hops: FatTreeHops) -> Iterator[LinkRange]:
    """Yield the NICs' ports if they have several (number endpoint · planes + plane), and the cables of each level."""
    built, rate = hops.tree, link.rate * link.efficiency
    if built.ports:
        yield from both_ways("port", built.ports, rate, 0.0)
    for t, level in enumerate(built.levels):
        cables = level.planes * level.ports if hops.adaptive else 1
        delay = spec.switch_latency + FIBRE * (link.cable[t + 1] if link.cable else 0.0)
        links = level.cables // cables * built.leaves.networks
        yield from both_ways(built.tiers[t].name, links, cables * rate, delay, cables)


def _counts(cluster: NodeSpecs, spec: FatTree, link: Link, built: Tree) -> dict[str, float]:
    """Return `TIER_switches`, `TIER_cables` and their sums, `switch_ports`, `bisection` (bytes/s), largest `oversubscription`."""
    cables = [cluster.endpoints * spec.planes, *(level.cables * built.leaves.networks for level in built.levels)]
    switches = [built.switches(t) for t in range(len(built.tiers))]
    return {
        **{f"{tier.name}_switches": number for tier, number in zip(built.tiers, switches, strict=True)},
        **{f"{tier.name}_cables": number for tier, number in zip(built.tiers, cables, strict=True)},
        "switches": sum(switches),
        "switch_ports": sum(number * tier.radix for tier, number in zip(built.tiers, switches, strict=True)),
        "cables": sum(cables),
        "bisection": min(cables) / 2 * link.rate * link.efficiency,
        "oversubscription": max([1.0, *(_nics_below(built, t) / (t.planes * t.ports) for t in built.levels)]),
    }


def _nics_below(built: Tree, level: Level) -> int:
    """Return the number of NICs below a full group of a tier, which share its uplinks."""
    leaves = built.leaves
    leaf = min(leaves.down, leaves.unit if leaves.rails else leaves.endpoints)
    return min(leaf * level.span, leaves.endpoints // leaves.parts)


def _fanouts(cluster: NodeSpecs, built: Tree) -> tuple[int, ...]:
    """Return nodes per set of leaves, sets per pod, …, rounded up, without ones; (nodes,) if nodes differ in NICs."""
    leaves = built.leaves
    if not leaves.nics:
        return (cluster.nodes,)
    if leaves.rails:
        first, width = leaves.unit * leaves.rails // leaves.nics, leaves.sets * leaves.rails // leaves.parts
    else:
        first, width = max(1, leaves.down // leaves.nics), -(-leaves.nics // leaves.down)
    reach = [first * max(1, level.span // width) for level in built.levels]
    fanouts: list[int] = []
    product = 1
    for nodes in (*reach, cluster.nodes):
        fanout = -(-min(nodes, cluster.nodes) // product)
        product *= fanout
        fanouts += [fanout] if fanout > 1 else []
    return tuple(fanouts)
