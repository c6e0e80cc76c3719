"""What TorchRec's planner says that nobody needs to hear."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_COPIES = "Sharding spec not found for "


@contextmanager
def without_copies_remarks() -> Iterator[None]:
    """Keep back a warning of TorchRec's planner for every table in copies: that it has no shards, as copies never have.

    It is said by the root logger, which has no level or name of TorchRec's that could be set instead.
    """
    root = logging.getLogger()
    root.addFilter(_is_other)
    try:
        yield
    finally:
        root.removeFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_COPIES)
