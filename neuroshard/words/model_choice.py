"""The choice of cost models: the name of the cost models, and settings such as the time of the dense network.
The settings decide, for example, whether costs include the framework overhead of TorchRec.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, check_name
from neuroshard.plumbing.schema import NonNegative, PathName, Positive
from neuroshard.words.collective import Precision

TORCHREC, NO_FRAMEWORK = "torchrec", "none"
FRAMEWORKS = (TORCHREC, NO_FRAMEWORK)
OPTIMIZERS = ("rowwise_adagrad", "adam", "sgd")  # optimizers whose state updates analytic models can cost
INFINIBAND, ROCE, EFA, SLINGSHOT, TCP = "infiniband", "roce", "efa", "slingshot", "tcp"
NETWORKS = (INFINIBAND, ROCE, EFA, SLINGSHOT, TCP)  # kinds of network between hosts that analytic models know
LINKS = ("network", "network_gb_per_s", "network_busbw_gb_per_s", "host_busbw_gb_per_s", "nvlink_bridges")
_FULL = Precision.FP32.value
_OLD_DENSE = re.compile(r"dense(\d+(?:\.\d+)?)ms")


@dataclass(frozen=True)
@checked
class ModelChoice:
    """A choice of cost models: the name of the cost models, and settings.
    The settings decide, for example, whether costs include the framework overhead of TorchRec.

    Attributes:
        name: name of installed models or of a datasheet (roofline:NAME), or path of the directory of a bundle.
        framework: "torchrec" if costs include the framework overhead of TorchRec, "none" if they do not; None if there
            is no choice.
        dense_ms: time of the dense network per step on a device, in ms; None if that time is unknown.
        exchange_dtype: data type of embeddings and gradients in exchanges, such as "fp16", or "fp16/bf16" for forward
            and backward; None for fp32.
        optimizer: optimizer whose states the kernels of analytic models read and write; None for the default of the
            models.
        network, network_gb_per_s, network_busbw_gb_per_s, host_busbw_gb_per_s, nvlink_bridges: the links between
            devices, for analytic exchange times (`ModelSettings`); None for those of the models.

    Raises:
        UserError: a value is unknown.
    """

    name: PathName
    framework: str | None = None
    dense_ms: NonNegative | None = None
    exchange_dtype: str | None = None
    optimizer: str | None = None
    network: str | None = None
    network_gb_per_s: Positive | None = None
    network_busbw_gb_per_s: Positive | None = None
    host_busbw_gb_per_s: Positive | None = None
    nvlink_bridges: bool | None = None

    def __post_init__(self) -> None:
        _check(self.framework, self.exchange_dtype, self.optimizer, self.network)

    @property
    def links(self) -> dict[str, Any]:
        """The settings about links between devices, by name, without the settings that are None."""
        return _not_none({name: getattr(self, name) for name in LINKS})

    @property
    def normalized(self) -> "ModelChoice":
        """The same choice of cost models, in a form that is equal for all choices with the same costs. A setting
        becomes None if the value has the same effect as None, such as exchange_dtype=fp32. Equal data types for the
        forward and the backward pass are written once.
        """
        framework = None if self.framework == NO_FRAMEWORK else self.framework
        dtypes = dict.fromkeys((self.exchange_dtype or _FULL).split("/"))
        exchange_dtype = "/".join(dtypes)
        return replace(self, framework=framework, exchange_dtype=None if exchange_dtype == _FULL else exchange_dtype)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the choice whose value is not None, by name."""
        return _not_none({name: value for name, value in vars(self).items() if name != "name"})

    @property
    def fields(self) -> dict[str, Any]:
        """The choice as a dictionary, as files store it: the name of the cost models, and each setting whose value is
        not None.
        """
        return {"name": self.name, **self.settings}

    def __str__(self) -> str:
        """Return the choice as text for people: "h100, framework=torchrec, dense_ms=8"."""
        return ", ".join([self.name, *_as_texts(self.normalized.settings)])


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Settings that cost models need to predict a training step, such as whether costs include TorchRec's overhead.
    Commands have these settings in addition to `model`, the name of the cost models.

    Attributes:
        framework: torchrec | none: torchrec counts TorchRec's overhead per step in costs, and none counts no overhead;
            None counts TorchRec's overhead, if the models know this overhead, only for target=torchrec or measured
            training steps.
        dense_ms: time of the dense network per step on one GPU, in ms, such as 8; used only if costs include TorchRec's
            overhead (framework=torchrec); None: search picks a plan that suits 0 to 15 ms, and other commands assume
            7.5 ms.
        exchange_dtype: data type of embeddings and gradients in exchanges: fp32, fp16, bf16, fp8 or int8, or two types
            such as fp16/bf16 for forward and backward; null means fp32.
        optimizer: rowwise_adagrad | adam | sgd: optimizer of the tables; analytic models (roofline:NAME) add the time
            to update the state to kernel times; this setting does not change memory use (see memory.optimizer); None
            means sgd.
        network: infiniband | roce | efa | slingshot | tcp: kind of network between hosts, for models with analytic
            exchange times (roofline:NAME, h100); None means infiniband.
        network_gb_per_s: bandwidth of the network cards of one GPU, in one direction, in GB/s, such as 50 for 400
            Gbit/s; None takes the usual cards of the GPU.
        network_busbw_gb_per_s: bus bandwidth in GB/s that all_reduce_perf of nccl-tests prints for 1 GiB on all GPUs of
            all hosts, to correct analytic exchange times; None means that it was not measured.
        host_busbw_gb_per_s: bus bandwidth in GB/s that all_reduce_perf of nccl-tests prints for 512 MiB or more on the
            GPUs of one host, to correct analytic exchange times; None means that it was not measured.
        nvlink_bridges: True if NVLink bridges join pairs of GPUs that have only PCIe otherwise; None means no bridges.
    """

    framework: str | None = None
    dense_ms: NonNegative | None = None
    exchange_dtype: str | None = None
    optimizer: str | None = None
    network: str | None = None
    network_gb_per_s: Positive | None = None
    network_busbw_gb_per_s: Positive | None = None
    host_busbw_gb_per_s: Positive | None = None
    nvlink_bridges: bool | None = None

    def __post_init__(self) -> None:
        _check(self.framework, self.exchange_dtype, self.optimizer, self.network)

    @property
    def model_settings(self) -> dict[str, Any]:
        """The settings whose value is not None, by name."""
        return _not_none({field.name: getattr(self, field.name) for field in fields(ModelSettings)})

    def choice_of(self, model: str) -> ModelChoice:
        """Return the `ModelChoice` that has the name `model` of cost models and the settings of this object."""
        return ModelChoice(model, **self.model_settings)


def check_plain(name: str) -> None:
    """Raise UserError if the name of a model also contains settings, as in "NAME+torchrec". Only old versions accepted
    settings after plus signs.
    """
    base, settings = name, dict[str, Any]()
    while True:
        before, plus, last = base.rpartition("+")
        meant = _old_setting(last) if plus and before else {}
        if not meant:
            break
        base, settings = before, meant | settings
    if settings:
        raise UserError(
            "model-name-with-settings",
            f"unknown model {name!r}",
            limit="settings are not part of the name of a model",
            remedy=f"Give the name {base!r} and the settings {settings_text(settings)}",
        )


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return the names and values of settings as one text, as people write them: "framework=torchrec, dense_ms=8"."""
    return ", ".join(_as_texts(settings))


def _not_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings whose value is not None, by name."""
    return {name: value for name, value in settings.items() if value is not None}


def _old_setting(suffix: str) -> dict[str, Any]:
    """Return the setting that old versions read from a suffix of a model's name, as a dict with one entry. For example,
    the suffix "dense8ms" gives {"dense_ms": 8.0}. The dict is empty if old versions did not read a setting from the
    suffix.
    """
    if suffix == TORCHREC:
        return {"framework": suffix}
    if dense := _OLD_DENSE.fullmatch(suffix):
        return {"dense_ms": float(dense[1])}
    if suffix.partition("/")[0] in tuple(Precision):
        return {"exchange_dtype": suffix}
    return {"optimizer": suffix} if suffix in OPTIMIZERS else {}


def _as_texts(settings: Mapping[str, Any]) -> list[str]:
    """Return a list with the text NAME=VALUE for each setting."""
    return [
        f"{name}={np.format_float_positional(value, trim='-') if isinstance(value, float) else value}"
        for name, value in settings.items()
    ]


def _check(framework: str | None, exchange_dtype: str | None, optimizer: str | None, network: str | None) -> None:
    """Raise UserError if `framework`, `exchange_dtype`, `optimizer` or `network` has an unknown value. None is always
    allowed.
    """
    if network is not None:
        check_name("network", network, NETWORKS)
    if framework is not None:
        check_name("framework", framework, FRAMEWORKS)
    if optimizer is not None:
        check_name("optimizer", optimizer, OPTIMIZERS)
    if exchange_dtype is not None:
        dtypes = exchange_dtype.split("/")
        if len(dtypes) > 2:
            raise UserError(
                "exchange-dtype-count",
                f"exchange_dtype={exchange_dtype!r} names {len(dtypes)} data types",
                limit="the maximum is 2: the first for the forward pass, the second for the backward pass",
                remedy="Set exchange_dtype to one or two data types, such as fp16/bf16",
            )
        for dtype in dtypes:
            check_name("exchange_dtype", dtype, tuple(map(str, Precision)))
