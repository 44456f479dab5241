"""A placement by its name: `packed`, `random:7` or `package.module:function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clustersim import plugins
from clustersim.errors import InputError, PluginError, UnknownNameError, shown

Deal = Callable[[Sequence[int], Sequence[int]], list[list[int]]]
"""(nodes that each job wants, free nodes) -> nodes of each job."""
ROOM = "clustersim.placements"
_DIGITS = 18


def dealer(placement: str) -> Deal:
    """Return the placement of that name. Raises UnknownNameError when there is none.

    What it returns raises InputError when a placement from outside fails or does not keep to the rules.
    """
    name, _, seed = placement.rpartition(":")
    numbered = bool(name) and seed.isdecimal() and len(seed) <= _DIGITS
    if name in plugins.names(ROOM) and not numbered:
        raise UnknownNameError(
            f"{placement}: {shown(seed)} is no seed; write a whole number of at most {_DIGITS} digits, such as {name}:7"
        )
    deal = plugins.load(ROOM, name if numbered else placement, "deal")

    def dealt(wanted: Sequence[int], free: Sequence[int]) -> list[list[int]]:
        try:
            with plugins.blaming(ROOM, name if numbered else placement):
                found = [sorted(map(int, own)) for own in deal(wanted, free, int(seed) if numbered else 0)]
        except PluginError as error:
            raise PluginError(f"placement {error}") from error
        nodes = [node for own in found for node in own]
        if [len(own) for own in found] != list(wanted) or len(set(nodes)) < len(nodes) or set(nodes) - set(free):
            raise InputError(
                f"placement {placement} does not give each job its own free nodes, as many as it wants; see a built-in one"
            )
        return found

    return dealt
