"""Splits of tables for training, validation and testing; the test tables never occur in training."""

import numpy as np

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.tables import Table

TRAIN, VALID, TEST = "train", "valid", "test"
REFERENCE = "reference"  # samples that are measured with every batch, only to show the machine's speed
_VALID_EVERY = 5  # one in this many samples of plans is for validation
_SHARES = {TRAIN: 0.8, VALID: 0.1, TEST: 0.1}
Split = dict[str, tuple[Table, ...]]  # disjoint; every sample draws from the tables of one split only


def split_tables(tables: tuple[Table, ...], seed: int) -> Split:
    """Divide the tables at random by `seed` into training (80%), validation (10%) and test (10%). Each split has at
    least one table. Raise UserError if there are fewer than 3 tables.
    """
    if len(tables) < len(_SHARES):
        raise UserError(
            "split-too-few-tables",
            f"there {'is' if len(tables) == 1 else 'are'} {number_of(len(tables), 'table')}",
            limit="training, validation and test need at least one table each, so at least 3 tables",
            remedy="Give 3 tables or more",
        )
    order = np.random.default_rng(seed).permutation(len(tables))
    held_out = max(1, round(_SHARES[TEST] * len(tables)))
    groups = np.split(order, [held_out, 2 * held_out])
    test, valid, train = (tuple(tables[i] for i in sorted(group)) for group in groups)
    return {TRAIN: train, VALID: valid, TEST: test}


def split_of(number: int) -> str:
    """Return the split of sample `number`: "valid" for every fifth number (4, 9, 14, ...), and "train" for all others.
    This function is for samples that are measured to find the cost of a plan.

    A plan's tables are fixed and cannot be held out, so some samples are held out instead.
    """
    return VALID if number % _VALID_EVERY == _VALID_EVERY - 1 else TRAIN


def draw_split(rng: np.random.Generator) -> str:
    """Draw the name of a split: train, valid or test, with probabilities 0.8, 0.1 and 0.1."""
    return str(rng.choice(list(_SHARES), p=list(_SHARES.values())))
