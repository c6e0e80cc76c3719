"""Limits of the plain values in models' settings."""

from typing import Annotated

from msgspec import Meta

Scale = Annotated[float, Meta(gt=0, le=1e9)]  # ms
Offset = Annotated[float, Meta(ge=-1e9, le=1e9)]  # in multiples of a scale
