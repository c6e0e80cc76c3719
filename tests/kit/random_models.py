"""Models of the kinds that bundles store, with random weights."""

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.models import CommModel, CostModels
from neuroshard.models.comm_models import FEATURE_SIGNS, ExchangeModels, SetComm
from neuroshard.models.compute_models import AdditiveCompute, ByWidestCompute, ComputeEnsemble, RegressionCompute
from neuroshard.models.features import FeatureSet
from neuroshard.models.host_tiers import HostTiers
from neuroshard.models.kernels import KernelModels
from neuroshard.models.stored import Mlp, Normaliser
from neuroshard.plumbing.arrays import IntArray
from neuroshard.testing.toys import random_mlp, random_normaliser, toy_tables
from neuroshard.words.collective import Collective
from neuroshard.words.form import CALLS, CUT_FORMS, FORMS, ON_DEVICE_CALLS
from neuroshard.words.placement import Tier


def random_ensemble(seed: int = 0) -> ComputeEnsemble:
    """Make an ensemble of two additive models with random weights that have the signs of pre-trained weights."""
    rng, features = np.random.default_rng(seed), FeatureSet("physical_reuse")
    signs = np.array(features.signs)
    turns = np.array([1, -1, 1, -1], np.float32)
    members = [
        AdditiveCompute(
            features, Normaliser.fitted(features(Loads.of(toy_tables(50), 256))), _monotone_mlp(signs, 16, 5, rng),
            rng.uniform(0, 1e-9, (len(signs), 5)).astype(np.float32), rng.normal(size=4).astype(np.float32),
            np.abs(rng.normal(size=4)).astype(np.float32) * turns, 4.0, scale_ms,
        )
        for scale_ms in (0.5, 2.0)
    ]  # fmt: skip
    return ComputeEnsemble(tuple(members))


def random_by_widest(seed: int = 0) -> ComputeEnsemble:
    """Make an ensemble of two random models whose calls cost less if no table exceeds 16, 32 or 64 columns."""
    rng, widths = np.random.default_rng(seed), (16, 32, 64)
    members = [
        ByWidestCompute(**vars(member), kernel_widths=widths, saved=rng.uniform(0.1, 0.5, 3).astype(np.float32))
        for member in random_ensemble(seed).members
    ]
    return ComputeEnsemble(tuple(members))


def random_regression(seed: int = 0) -> RegressionCompute:
    """Make a regression with random weights, none of them negative."""
    rng, features = np.random.default_rng(seed), FeatureSet("physical")
    return RegressionCompute(features, rng.uniform(0, 1e-6, len(features.columns)), np.array([0.1]))


def random_set_comm(seed: int = 0) -> SetComm:
    """Make an exchange model for any number of devices, with random weights of the signs of pre-trained weights."""
    rng, segments = np.random.default_rng(seed), 3
    network = _monotone_mlp(np.array(FEATURE_SIGNS), 16, 1 + segments, rng)
    share, lead = (
        array.astype(np.float32) for array in (rng.dirichlet(np.ones(segments)), rng.uniform(0, 0.2, (segments, 5)))
    )
    return SetComm(random_normaliser(len(FEATURE_SIGNS), rng), network, 0.5, share, lead)


def random_by_form(seed: int = 0) -> KernelModels:
    """Make a random model of each kernel call: ensembles for column_wise and row_wise, formulas for host tiers."""
    others = map(random_regression, range(seed, seed + len(FORMS) - 2))
    pooled = random_ensemble(seed), random_ensemble(seed + 1), *others
    sequences = random_ensemble(seed + 2), *map(random_regression, range(seed + 3, seed + 2 + len(CUT_FORMS)))
    return KernelModels(
        dict(zip(ON_DEVICE_CALLS, (*pooled, *sequences), strict=True))
        | {call: HostTiers(0.5, 20.0 + seed, 3.0, 0.1) for call in CALLS if call.tier is not Tier.DEVICE}
    )


def random_by_collective(seed: int = 0) -> ExchangeModels:
    """Make an exchange model of each collective of a step, with random weights."""
    exchanges: dict[Collective, CommModel] = {
        one: random_set_comm(seed + one) for one in Collective if one is not Collective.INPUT
    }
    return ExchangeModels(exchanges, frozenset(FORMS))


def random_form_models(seed: int = 0) -> CostModels:
    """Make cost models of all sharding types and collectives and of the input dist, with random weights."""
    forward, backward = random_by_collective(seed), random_by_collective(seed + 10)
    return CostModels(random_by_form(seed), forward, backward, None, input=random_set_comm(seed + 20))


def _monotone_mlp(signs: IntArray, hidden: int, outputs: int, rng: np.random.Generator) -> Mlp:
    """Make a network of one hidden layer; outputs rise or fall with each input as its sign says, either way if 0."""
    plain, turns = random_mlp((len(signs), hidden, outputs), rng), 1 - 2 * (np.arange(hidden) % 2)
    wanted = signs[:, None] * turns[None, :]
    first = np.where(wanted == 0, plain.weights[0], np.abs(plain.weights[0]) * wanted).astype(np.float32)
    return Mlp((first, (np.abs(plain.weights[1]) * turns[:, None]).astype(np.float32)), plain.biases)
