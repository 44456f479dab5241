"""Prices, power and carbon: `defaults.yaml`, overridden by keys of the user's file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator, Field

from clustersim.config.fields import Count, LineRate, Spec, validate
from clustersim.config.overrides import Overridden
from clustersim.config.yaml import Document, read, read_packaged
from clustersim.errors import shown


def _bare_number(value: object) -> object:
    """Return a value that is not text. Raises ValueError for text, such as `2 USD`."""
    if isinstance(value, str):
        raise ValueError(f"{shown(value)} must be a number alone, in the unit of the default")
    return value


DEFAULTS = Path(__file__).with_name("defaults.yaml")
Money = Annotated[float, Field(strict=False, gt=0, le=1e12), BeforeValidator(_bare_number)]
Date = Annotated[str, BeforeValidator(str)]
Value = TypeVar("Value", bound=float)


class UnitPrice(Spec):
    """Price of one unit."""

    price: Money
    """USD per GPU-hour, node, cable, or Gb/s of a port or module."""
    low: Money | None = None
    """Lowest price found."""
    high: Money | None = None
    """Highest price found."""
    power: Annotated[float, Field(strict=False, ge=0, le=1e6), BeforeValidator(_bare_number)] = 0.0
    """W per Gb/s, for switches and optics."""
    date: Date = "given"
    """Date of the price."""
    source: str = "given"
    """Source of the price."""


class NodePrice(UnitPrice):
    """Price of one node."""

    gpus: Count | None = None
    """GPUs of that node; other nodes cost in proportion. None: any node costs this."""


class SwitchPrice(UnitPrice):
    """Price of switches of one generation, per Gb/s of port."""

    rate: LineRate
    """Rate of the fastest cable that they support."""


class Optics(Spec):
    """Modules at the ends of a cable."""

    nic: UnitPrice
    """Module at a NIC."""
    switch: UnitPrice
    """Module at a switch."""


class SourcedFigure(Spec, Generic[Value]):
    """A number with its source."""

    value: Value
    """The number."""
    date: Date = "given"
    """Date of the number."""
    source: str = "given"
    """Source of the number."""


class PositiveFigure(SourcedFigure[Annotated[float, Field(strict=False, gt=0, le=1e6), BeforeValidator(_bare_number)]]):
    """A number above 0."""


class PartFigure(SourcedFigure[Annotated[float, Field(strict=False, gt=0, le=1), BeforeValidator(_bare_number)]]):
    """A number above 0, at most 1."""


class OverheadFigure(SourcedFigure[Annotated[float, Field(strict=False, ge=1, le=10), BeforeValidator(_bare_number)]]):
    """A factor of at least 1."""


class ShareFigure(SourcedFigure[Annotated[float, Field(strict=False, ge=0, lt=1), BeforeValidator(_bare_number)]]):
    """A number of at least 0, below 1."""


class CostFigure(SourcedFigure[Annotated[float, Field(strict=False, ge=0, le=1e6), BeforeValidator(_bare_number)]]):
    """USD per GPU and year, at least 0."""


class PowerFigures(Spec):
    """Conversion of a node's maximum power into kWh, dollars and CO2."""

    load: PartFigure
    """Share of its maximum power that a node uses in training."""
    node_over_gpus: OverheadFigure
    """Maximum power of a node over that of its GPUs, if its file has none."""
    pue: OverheadFigure
    """Power of the building over power of the machines."""
    electricity: PositiveFigure
    """USD per kWh."""
    carbon: PositiveFigure
    """Grams CO2e per kWh."""


class Owned(Spec):
    """Conversion of a price into USD per GPU-hour."""

    life: PositiveFigure
    """Life in years."""
    residual: ShareFigure
    """Share of the price that remains at the end of life."""
    maintenance: ShareFigure
    """Share of the price per year."""
    people: CostFigure
    """USD per GPU and year for staff."""
    utilisation: PartFigure
    """Share of time in which the machine is used."""


class Figures(Spec):
    """All prices and power figures."""

    rent: dict[str, UnitPrice]
    """Price per GPU-hour, by GPU."""
    node: dict[str, NodePrice]
    """Price per node, by GPU."""
    switch: Annotated[tuple[SwitchPrice, ...], Field(strict=False, min_length=1)]
    """Prices of switches, the slowest first."""
    optics: Optics
    """Prices of modules."""
    cable: UnitPrice
    """Price of a fibre."""
    power: PowerFigures
    """Power, electricity and carbon."""
    owned: Owned
    """Figures for owned machines."""


def load(path: str | Path | None = None, rent: float | None = None) -> Figures:
    """Return the figures, overridden by a YAML file's. rent: USD per GPU-hour for every GPU. Raises ConfigError if invalid."""
    base = read_packaged(DEFAULTS)
    if path is None and rent is None:
        return _shipped()
    written = read(path) if path else Document("--price", {}, {})
    data = merged(base.data, written.data)
    if rent is not None:
        from clustersim.hardware.gpus import everything

        price = {"price": rent, "low": rent, "high": rent, "date": "given", "source": "--price"}
        data["rent"] = dict.fromkeys((*data["rent"], *(gpu.name for gpu in everything())), price)
    document = Overridden(written.path, data, written.positions, {} if path else {(): ("--price", 0, 0)})
    return validate(Figures, document)


@cache
def _shipped() -> Figures:
    return validate(Figures, read_packaged(DEFAULTS))


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults `base` overridden by `changes`; a number instead of a section replaces its `value` or `price`."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = merged(old, value)
        elif isinstance(old, dict) and isinstance(value, int | float | str):
            result[key] = {("value" if "value" in old else "price"): value}
        else:
            result[key] = value
    return result
