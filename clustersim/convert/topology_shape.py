"""The shape of a topology file: which keys hold sections, lists and names, before any value in them is judged.

Values are replaced in a file of this shape, and what comes out is validated as `TopologySpec`: so a value that is replaced may
be wrong in the file, and a section may not be a number.
"""

from pydantic import ConfigDict

from clustersim.config.fields import Section, Spec


class OpenSection(Spec):
    """Base of the sections whose other keys are judged later."""

    model_config = ConfigDict(extra="allow")


class PoolShape(OpenSection):
    """The nodes of one type."""

    node: str | Section | None = None
    """By its name, or as it is."""


class ClusterShape(PoolShape):
    """The nodes: of one type, or several pools."""

    pools: list[PoolShape] | None = None
    """One for each type of nodes."""


class TopologyShape(OpenSection):
    """A topology file."""

    cluster: ClusterShape = ClusterShape()
    """Its nodes."""
    fabric: Section | None = None
    """The network between them; without it there is one node."""
    nodes: Section | None = None
    """Types of nodes by name."""
