"""Fixed numbers of the default search: how many sharding types and tiers it tries. The numbers that users may set are
in `conf/settings/NeuroShard.yaml`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ChoiceSettings:
    """Fixed numbers of the default search: how many choices of sharding types and tiers it tries, and how far it
    trusts the estimated costs.

    Attributes:
        shard_shares: shares of a device's even part of the work that a column-wise shard may have; each share gives
            one way to split tables, and the cheapest way counts in an estimate. Infinity leaves tables whole.
        part_shares: shares of a device's mean cost, or of its memory, that an equal part may have; each share gives
            one way to split tables into more than two equal parts.
        cache_shares: shares of a table's rows that a cache may have room for, ascending.
        memory_shares: shares of all device memory that tier assignments may fill, descending. Less than all memory
            leaves room to place shards.
        host_prices: number of prices per byte of host memory that are tried until host memory suffices.
        narrow_cache_ways: number of ways to keep caches narrow for which tier assignments are made.
        narrow_cache_share: place in `memory_shares` of the share with which each of these ways has an assignment.
        grown_caches: maximum number of tables in host memory whose caches are grown.
        tier_rounds: maximum number of times that tiers are chosen again for a plan.
        column_wise_plans: number of tier assignments whose column-wise plans are searched by each of two costs: those
            of quick plans, and the estimates.
        searched_choices: maximum number of likely choices of sharding types that are searched fully.
        near_best: choices whose quick plan costs at most this many times the cheapest quick plan may truly be cheaper.
        near_estimate: choices that are estimated to cost less than this many times the cheapest quick plan are tried.
        neighbours: number of changes of the best choice that are tried before the best change is made.
        scarce_choices: number of choices with ever fewer column-wise tables that are tried if nothing else fits.
        steps: maximum number of steps of a local search over choices.
        memory_steps: maximum number of shards that leave the fullest device for more free memory there.
        memory_work: limit of the work for free memory, so that large tasks take no longer: each step counts as the
            number of possible steps, plus tables times devices.
        memory_steps_costed: numbers of these steps that are costed in the first call, in the second, and so on, until
            a step is taken.
        memory_worth: least share of the fullest device that must become free per share of the cost that is added.
        even_memory: a device at most this many times as full as all devices together is not relieved.
        likely_changes: number of most promising changes that a local search looks at alone, as long as some help.
    """

    shard_shares: tuple[float, ...] = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, float("inf"))
    part_shares: tuple[float, ...] = (0.8, 0.6, 0.4, 0.25, 0.15)
    cache_shares: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
    memory_shares: tuple[float, ...] = (1.0, 0.97, 0.9, 0.8, 0.65, 0.5)
    host_prices: int = 40
    narrow_cache_ways: int = 3
    narrow_cache_share: int = 1
    grown_caches: int = 64
    tier_rounds: int = 2
    column_wise_plans: int = 2
    searched_choices: int = 2
    near_best: float = 1.05
    near_estimate: float = 1.2
    neighbours: int = 3
    scarce_choices: int = 16
    steps: int = 100
    memory_steps: int = 200
    memory_work: int = 5_000_000
    memory_steps_costed: tuple[int, ...] = (64, 256, 1024, 4096)
    memory_worth: float = 20.0
    even_memory: float = 1.05
    likely_changes: int = 64


SETTINGS = ChoiceSettings()
