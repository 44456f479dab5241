"""Errors that tests must notice, the quick ones most of them: one small change each."""

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """One wrong change of one file."""

    error: str
    """What is wrong with it."""
    file: str
    old: str
    """Text that stands exactly once in the file."""
    new: str
    tests: str = ""
    """Files of the tests that notice it; the quick ones if empty."""


MUTANTS = (
    Mutant(
        "a ring all-reduce of NCCL has two hops too many",
        "clustersim/collectives/nccl/model.py",
        '{"all_reduce": 2 * (n - 1), ',
        '{"all_reduce": 2 * n, ',
    ),
    Mutant(
        "a ring's links carry the whole array instead of (n - 1) / n",
        "clustersim/collectives/algorithms/ring.py",
        "times * (n - 1) / n),)",
        "times * 1.0),)",
    ),
    Mutant(
        "the latency of NCCL's tree counts the way up alone",
        "clustersim/collectives/nccl/model.py",
        "return base + 2 * (hops * inside + depth * between)",
        "return base + hops * inside + depth * between",
    ),
    Mutant(
        "the max-min solver settles links that are not the tightest",
        "clustersim/engine/flows.py",
        "tightest: NDArray[np.bool_] = ~looser[link]",
        "tightest: NDArray[np.bool_] = ~looser[link] | (share <= limit * _SAME)",
    ),
    Mutant(
        "causal attention counts all keys",
        "clustersim/model/kernel.py",
        "share = 0.5 if causal else 1.0",
        "share = 1.0",
    ),
    Mutant(
        "a product counts one operation for multiply and add",
        "clustersim/model/kernel.py",
        "2.0 * batch * m * n * k",
        "1.0 * batch * m * n * k",
    ),
    Mutant(
        "a column-parallel linear keeps its gathered input",
        "clustersim/model/linear.py",
        "saved_input = input_size(shard) * (shard.tokens if gathered_saved else shard.local) * inputs",
        "saved_input = input_size(shard) * shard.tokens * inputs",
    ),
    Mutant(
        "ZeRO 1 does not cut the optimizer's state",
        "clustersim/parallel/memory.py",
        "optimizer=shard * state_bytes(job)",
        "optimizer=sum(stage.parameters for stage in stages) * state_bytes(job)",
    ),
    Mutant(
        "the peak leaves out the activations of a pass that ends",
        "clustersim/engine/memory.py",
        "kept = flight[1:] - flight[start[:-1]][rank] + (change < 0)",
        "kept = flight[1:] - flight[start[:-1]][rank]",
    ),
    Mutant(
        "interleaved ranks warm up one chunk less",
        "clustersim/schedules/kinds/interleaved.py",
        "np.arange(stages)[::-1] + (chunks - 1) * size",
        "np.arange(stages)[::-1] + (chunks - 2) * size",
    ),
    Mutant(
        "FSDP gathers one block ahead too late",
        "clustersim/parallel/fsdp.py",
        "        yield from gathers_up_to(unit + ahead)\n",
        "        yield from gathers_up_to(unit + ahead - 1)\n",
    ),
    Mutant(
        "a forecast may beat the roofline",
        "clustersim/predictors/learned.py",
        "return np.maximum(result, bound(table, gpu))",
        "return result * 0.9",
    ),
    Mutant(
        "power slows products without bound as the clock rises",
        "clustersim/predictors/power.py",
        "rise=EXPONENT - 1, exponent=1 / EXPONENT)",
        "rise=EXPONENT - 1, exponent=1.0)",
    ),
    Mutant(
        "the roofline leaves bytes out",
        "clustersim/predictors/features.py",
        "return np.maximum(table.flop / peak(table, gpu), table.bytes / gpu.memory_bandwidth)",
        "return table.flop / peak(table, gpu)",
    ),
    Mutant(
        "features of kernels outside the training rows are not clipped",
        "clustersim/predictors/mlp.py",
        'inside = features.clip(parameters["low"], parameters["high"])',
        "inside = features",
    ),
    Mutant(
        "cables from NICs have two modules at switches",
        "clustersim/costs/bill.py",
        "ends = 2 * cables - nics ",
        "ends = 2 * cables ",
        "tests/report/test_costs.py",
    ),
    Mutant(
        "the first layer of a pattern of windows sees all keys, not the last",
        "clustersim/convert/decoders.py",
        "kinds = [TYPES[bool((layer + 1) % step)]",
        "kinds = [TYPES[bool(layer % step)]",
        "tests/config/test_hugging_face.py tests/config/test_published_models.py",
    ),
    Mutant(
        "ZeRO 2 keeps all gradients where each microbatch's are reduced",
        "clustersim/parallel/memory.py",
        "(2 * bucket(job) * width if once else all_bytes, ",
        "(all_bytes, ",
    ),
    Mutant(
        "paths of a torus start each dimension at the source's coordinates",
        "clustersim/topology/lattice.py",
        "here = here + (b - a) * stride",
        "here = here + 0 * stride",
        "tests/topology/test_topology_kinds.py",
    ),
    Mutant(
        "seconds on shared links count as latency too",
        "clustersim/report/path_shares.py",
        "rest = exposed - shared - math.fsum",
        "rest = exposed - math.fsum",
        "tests/report/test_path_shares.py",
    ),
)


def misplaced(root: Path) -> list[str]:
    """Return one line for each mutant whose text does not stand exactly once in its file."""
    counts = [(root / one.file).read_text(encoding="utf-8").count(one.old) for one in MUTANTS]
    return [f"{one.file}: {count} × {one.old!r}" for one, count in zip(MUTANTS, counts, strict=True) if count != 1]
