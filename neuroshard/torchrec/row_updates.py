"""Update rules of FBGEMM's fused optimizers, written as functions of the gradient of a whole table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import Tensor

from neuroshard.plumbing.errors import UserError

State = dict[str, Tensor]

MEAN, MEAN_SQUARE, STEP = "momentum1", "exp_avg_sq", "iter"  # TorchRec's names for fused states

# Settings of FBGEMM's or torch's optimizers that are not supported, with the only value that is accepted.
_UNSUPPORTED: dict[str, Any] = {
    "gradient_clipping": False,  # FBGEMM clips the gradients of outputs before it sums them per row
    "max_norm": 0.0,
    "counter_based_regularization": None,
    "cowclip_regularization": None,
    "global_weight_decay": None,
    "extra_optimizer_config": None,
    "lr_decay": 0.0,
    "initial_accumulator_value": 0.0,
    "amsgrad": False,
    "maximize": False,
    "dampening": 0.0,
    "nesterov": False,
}


@dataclass(frozen=True)
class RowSettings:
    """Settings of a table's optimizer, with FBGEMM's defaults.

    Attributes:
        optimizer: the kind of optimizer.
        weight_decay_mode: how row-wise Adagrad applies `weight_decay`. Adam's decay is always decoupled; SGD and
            Adagrad ignore it.
        lr: learning rate.
        eps: term that is added to the root in the denominator.
        weight_decay: factor of the weights.
        beta1: decay of Adam's mean of gradients.
        beta2: decay of Adam's mean of squared gradients.
    """

    optimizer: EmbOptimType = EmbOptimType.EXACT_SGD
    weight_decay_mode: WeightDecayMode = WeightDecayMode.NONE
    lr: float = 0.01
    eps: float = 1e-8
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999

    @property
    def group(self) -> dict[str, float]:
        """The numeric settings by name, as they are stored in a parameter group of a torch optimizer."""
        return {name: getattr(self, name) for name in NUMBERS}

    def on(self, device: torch.device) -> "RowSettings":
        """Return a copy of these optimizer settings in which row-wise Adagrad has no weight decay if `device` is a CPU,
        because FBGEMM's row-wise Adagrad ignores weight decay there. On all other devices return the settings
        unchanged. The weight decay of Adam stays on every device.
        """
        return replace(self, weight_decay_mode=WeightDecayMode.NONE) if device.type == "cpu" else self

    def changed(self, group: Mapping[str, Any]) -> "RowSettings":
        """Return a copy of these settings in which the numbers, such as the learning rate, are the values in `group`.
        The argument is a parameter group of a torch optimizer.
        """
        return replace(self, **{name: group[name] for name in NUMBERS})


DECAYS = (WeightDecayMode.NONE, WeightDecayMode.L2, WeightDecayMode.DECOUPLE)
NUMBERS = ("lr", "eps", "weight_decay", "beta1", "beta2")
_SETTINGS = {field.name for field in fields(RowSettings)}
KNOWN_SETTINGS = _SETTINGS | {"learning_rate", "betas"} | _UNSUPPORTED.keys()


def row_settings(table: str, fused_params: Mapping[str, Any]) -> RowSettings:
    """Return the settings of a table's optimizer, given the parameters of the table's fused kernel in TorchRec.

    Raises:
        UserError: the optimizer, or one of its settings, is not supported for the gradient of a whole table.
    """
    given = dict(fused_params)
    if "learning_rate" in given:
        given["lr"] = given["learning_rate"]
    if "betas" in given:  # torch's name, which FBGEMM does not know
        given["beta1"], given["beta2"] = given["betas"]
    for name in NUMBERS:
        if not isinstance(given.get(name, 0.0), Real):
            _refuse(
                table, name, given[name], f"{name} must be a number, and the value is a {type(given[name]).__name__}"
            )
    settings = RowSettings(**{name: value for name, value in given.items() if name in _SETTINGS})
    if settings.optimizer not in RULES:
        _refuse(
            table, "optimizer", settings.optimizer, f"supported optimizers: {', '.join(kind.name for kind in RULES)}"
        )
    if settings.weight_decay_mode not in DECAYS:
        supported = ", ".join(mode.name for mode in DECAYS)
        _refuse(table, "weight_decay_mode", settings.weight_decay_mode, f"supported modes: {supported}")
    for name, neutral in _UNSUPPORTED.items():
        if given.get(name, neutral) != neutral:
            _refuse(table, name, given[name], f"only {neutral} is supported")
    return settings


def _refuse(table: str, name: str, value: object, limit: str) -> None:
    """Raise UserError for a setting that fused kernels support but `data_parallel_optimizer` does not support."""
    shown = getattr(value, "name", value)
    raise UserError(
        "dense-optimizer-setting",
        f"table {table!r} has a dense kernel, for which data_parallel_optimizer does not support {name}={shown}",
        limit=limit,
        remedy=f"Do one of these: change the setting for this table alone with data_parallel_optimizer(model, "
        f"settings={{{table!r}: ...}}); plan the table without data_parallel; or train data_parallel_parameters(model) "
        "with another optimizer",
    )


Update = Callable[[Tensor, Tensor, State, RowSettings], tuple[Tensor, State]]


@dataclass(frozen=True)
class UpdateRule:
    """The rule by which one kind of optimizer updates the weights of a table.

    Attributes:
        states: names of the fp32 states; the value is True for a state per element and False for a state per row.
        update: function from weights and gradient (rows, dim) in fp32, states and settings to new weights and states.
        counts_steps: True if the rule depends on the number of steps so far.
    """

    states: Mapping[str, bool]
    update: Update
    counts_steps: bool = False

    def initial_state(self, weights: Tensor) -> State:
        """Return the optimizer states of a table before the first step: tensors of zeros."""
        rows, dim = weights.shape
        device = weights.device
        state = {
            name: torch.zeros((rows, dim) if whole else rows, device=device) for name, whole in self.states.items()
        }
        if self.counts_steps:
            state[STEP] = torch.zeros(1)  # in host memory, because every step reads it
        return state

    @torch.no_grad()
    def step(self, weights: Tensor, gradient: Tensor, state: State, settings: RowSettings) -> None:
        """Update weights and states in place, in the rows with a gradient other than zero.

        A fused kernel does not change rows that no sample looks up; the gradient of such rows is zero.
        """
        if self.counts_steps:
            state[STEP] += 1
        touched = gradient.ne(0).any(dim=1)
        new_weights, new_state = self.update(weights.float(), gradient.float(), state, settings)
        weights.copy_(torch.where(touched[:, None], new_weights, weights))
        for name, value in new_state.items():
            rows = touched if value.dim() == 1 else touched[:, None]
            state[name].copy_(torch.where(rows, value, state[name]))


def _sgd(weights: Tensor, gradient: Tensor, _: State, settings: RowSettings) -> tuple[Tensor, State]:
    """Return the weights after a step of SGD, w' = w - lr g, for weights w and gradient g."""
    return weights - settings.lr * gradient, {}


def _adagrad(weights: Tensor, gradient: Tensor, state: State, settings: RowSettings) -> tuple[Tensor, State]:
    """Return weights and state after a step of Adagrad.
    For weights w, gradient g and state s: s' = s + g^2; w' = w - lr g / (sqrt(s') + eps).
    """
    total = state[MEAN] + gradient.square()
    return weights - settings.lr * gradient / (total.sqrt() + settings.eps), {MEAN: total}


def _rowwise_adagrad(weights: Tensor, gradient: Tensor, state: State, settings: RowSettings) -> tuple[Tensor, State]:
    """Return weights and state after a step of row-wise Adagrad.

    s' = s + mean of d^2 over columns; r = lr / (sqrt(s') + eps); w' = c w - r g.

    Without decay: d = g, c = 1. L2: d = g + weight_decay w, c = 1 - r weight_decay. Decoupled: d = g, c = 1 - lr
    weight_decay.
    """
    mode, decay = settings.weight_decay_mode, settings.weight_decay
    decayed = gradient + decay * weights if mode == WeightDecayMode.L2 else gradient
    total = state[MEAN] + decayed.square().mean(dim=1)
    rate = (settings.lr / (total.sqrt() + settings.eps))[:, None]
    shrunk = {
        WeightDecayMode.NONE: weights,
        WeightDecayMode.L2: (1 - rate * decay) * weights,
        WeightDecayMode.DECOUPLE: (1 - settings.lr * decay) * weights,
    }
    return shrunk[mode] - rate * gradient, {MEAN: total}


def _adam(weights: Tensor, gradient: Tensor, state: State, settings: RowSettings) -> tuple[Tensor, State]:
    """Return weights and states after a step of Adam, with a separate mean of squared gradients for each element."""
    return _adam_of(gradient.square(), weights, gradient, state, settings)


def _rowwise_adam(weights: Tensor, gradient: Tensor, state: State, settings: RowSettings) -> tuple[Tensor, State]:
    """Return weights and states after a step of partial row-wise Adam.
    Each row has one mean of squared gradients, instead of one for each element.
    """
    return _adam_of(gradient.square().mean(dim=1), weights, gradient, state, settings)


def _adam_of(
    squares: Tensor, weights: Tensor, gradient: Tensor, state: State, settings: RowSettings
) -> tuple[Tensor, State]:
    """Return weights and states after a step of Adam, with decoupled weight decay. For Adam, `squares` (rows, dim) has
    the squared gradient of each element. For row-wise Adam, `squares` (rows,) has the mean of the squared gradients in
    each row.

    With t, the number of the step:

    m' = b1 m + (1 - b1) g; v' = b2 v + (1 - b2) squares;

    w' = w - lr (m' / (1 - b1^t) / (sqrt(v' / (1 - b2^t)) + eps) + weight_decay w)
    """
    beta1, beta2, step = settings.beta1, settings.beta2, state[STEP].item()
    mean = beta1 * state[MEAN] + (1 - beta1) * gradient
    mean_square = beta2 * state[MEAN_SQUARE] + (1 - beta2) * squares
    root = (mean_square / (1 - beta2**step)).sqrt() + settings.eps
    direction = mean / (1 - beta1**step) / (root if root.dim() > 1 else root[:, None])
    new = weights - settings.lr * (direction + settings.weight_decay * weights)
    return new, {MEAN: mean, MEAN_SQUARE: mean_square}


RULES: dict[EmbOptimType, UpdateRule] = {
    EmbOptimType.EXACT_SGD: UpdateRule({}, _sgd),
    EmbOptimType.EXACT_ADAGRAD: UpdateRule({MEAN: True}, _adagrad),
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: UpdateRule({MEAN: False}, _rowwise_adagrad),
    EmbOptimType.ADAM: UpdateRule({MEAN: True, MEAN_SQUARE: True}, _adam, counts_steps=True),
    EmbOptimType.PARTIAL_ROWWISE_ADAM: UpdateRule({MEAN: True, MEAN_SQUARE: False}, _rowwise_adam, counts_steps=True),
}
