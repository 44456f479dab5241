"""A machine file: what measured steps say of one cluster, as `clustersim calibrate` writes it and `--machine` takes it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from clustersim.config.fields import Name, Spec, between

VERSION: Literal[1] = 1
"""Of machine files; another number says that their keys mean something else."""
Factor = Annotated[float, Field(gt=0, le=1000, strict=False)]
LogSpread = Annotated[float, Field(ge=0, le=10, strict=False)]
"""Standard deviation of a logarithm: 0.05 is about 5 %."""
Correlation = Annotated[float, Field(ge=-1, le=1, strict=False)]
DottedKey = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_][\w-]*(\.[\w-]+)*$")]


class MachineConstant(Spec):
    """One figure that a forecast rests on, as it is on this machine."""

    name: Name
    """As `clustersim explain` calls it."""
    factor: Factor
    """How many times what is forecast without this file."""
    spread: LogSpread
    """How far the factor may be off: the standard deviation of its logarithm."""
    usual_spread: LogSpread
    """The same of machines without measurements."""
    evidence: str = ""
    """What the factor was read from."""
    keys: dict[DottedKey, Any] = Field(default_factory=dict)
    """Values by dotted key of a topology or workload, which take the place of theirs."""
    correlations: Annotated[tuple[Correlation, ...], Field(strict=False)] = ()
    """With the constants before this one, in their order; none: independent of all."""


class MachineSpec(Spec):
    """A whole machine file."""

    version: Literal[1]
    """Of this kind of file."""
    gpu: Name
    """Of the cluster; on others the figures do not hold."""
    evidence: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """What was measured."""
    remainder: LogSpread
    """How far a step may be off that all constants are known of: the standard deviation of its logarithm."""
    constants: Annotated[tuple[MachineConstant, ...], Field(strict=False), between(1, 64)]
    """The figures, each once."""
