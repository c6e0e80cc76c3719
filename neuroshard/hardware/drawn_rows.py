"""Which rows of a table are looked up, once it is known how often each of them is."""

import torch

from neuroshard.tables import Table

_FEW = 4  # times as many rows as are drawn, from which on they are drawn with repeats, which are left out


def rows_for(counts: torch.Tensor, table: Table, hot_first: float, generator: torch.Generator) -> torch.Tensor:
    """(U,) unique rows of a table, to be touched `counts` (U,) times.

    They lie anywhere, but for a share `hot_first` of those touched more than once, which are the first ones, hottest
    first; or, where that is 0, so that each block of the table's `row_lookups` gets its share of the counts.
    """
    if hot_first:
        return _hot_first(counts, table.rows, hot_first, generator)
    if table.row_lookups:
        return _by_share(counts, table, generator)
    return _some_rows(table.rows, len(counts), generator)


def _hot_first(counts: torch.Tensor, rows: int, hot_first: float, generator: torch.Generator) -> torch.Tensor:
    first = (counts > 1) & (uniform(len(counts), generator) < hot_first)
    hottest = torch.where(first, counts, 0).argsort(descending=True, stable=True)
    in_order = int(first.sum())
    others = in_order + _some_rows(max(1, rows - in_order), len(counts) - in_order, generator)
    found = torch.empty_like(counts)
    found[hottest[:in_order]] = torch.arange(in_order, device=counts.device)
    found[hottest[in_order:]] = others
    return found


def _by_share(counts: torch.Tensor, table: Table, generator: torch.Generator) -> torch.Tensor:
    """Rows are dealt out to the blocks in random order; a block without room for all of its own keeps the hottest."""
    shares = torch.tensor(table.row_lookups, dtype=torch.float64, device=counts.device)
    firsts = torch.arange(len(shares) + 1, device=counts.device) * table.rows // len(shares)
    block = _dealt(counts, shares, generator)
    room = firsts.diff()
    kept, over = _kept(counts, block, room)
    free = (room - torch.bincount(block[kept], minlength=len(room))).cumsum(0)
    places = _some_rows(max(1, int(free[-1])), len(over), generator)
    block[over] = torch.searchsorted(free, places, right=True)
    found = torch.empty_like(counts)
    for number in torch.unique(block).tolist():
        inside = (block == number).nonzero()[:, 0]
        found[inside] = firsts[number] + _some_rows(int(room[number]), len(inside), generator)
    return found


def _dealt(counts: torch.Tensor, shares: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """(U,) block of each row: of all rows in a random order, each block gets those that make up its share."""
    order = torch.randperm(len(counts), generator=generator, device=counts.device)
    dealt = counts[order].to(torch.float64)
    middles = (dealt.cumsum(0) - dealt / 2) / dealt.sum()
    block = torch.empty_like(counts)
    block[order] = torch.searchsorted(shares.cumsum(0) / shares.sum(), middles).clamp(max=len(shares) - 1)
    return block


def _kept(counts: torch.Tensor, block: torch.Tensor, room: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows, by their place, their blocks have room for, and which they haven't."""
    hottest = counts.argsort(descending=True, stable=True)
    order = hottest[block[hottest].argsort(stable=True)]
    sizes = torch.bincount(block, minlength=len(room))
    place = torch.arange(len(counts), device=counts.device) - (sizes.cumsum(0) - sizes)[block[order]]
    fits = place < room[block[order]]
    return order[fits], order[~fits]


def _some_rows(rows: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw (count,) unique rows in random order."""
    if rows >= _FEW * count:
        drawn: torch.Tensor = torch.unique(
            torch.randint(rows, (2 * count,), generator=generator, device=generator.device)
        )
        if len(drawn) >= count:
            return drawn[torch.randperm(len(drawn), generator=generator, device=generator.device)[:count]]
    return torch.randperm(rows, generator=generator, device=generator.device)[:count]


def uniform(count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw (count,) uniform random numbers in [0, 1), float64."""
    return torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
