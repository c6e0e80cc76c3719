"""A trace of PyTorch's profiler, written by hand."""

_POOLED = "fbgemm::split_embedding_codegen_forward_unweighted_pt2_wrapper"
_BACK = "fbgemm::split_embedding_backward_codegen_adam_unweighted_pt2_wrapper"


def _op(name, ts, dur, dims, values, thread=1):
    arguments = {"Input Dims": dims, "Concrete Inputs": values}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": ts, "dur": dur, "args": arguments}


def _kernel_of(correlation, launched, dur, thread=1, **arguments):
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": thread, "ts": launched}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": launched + 50, "dur": dur}
    return [
        launch | {"dur": 1, "args": {"correlation": correlation}},
        kernel | {"args": {"correlation": correlation, **arguments}},
    ]


def gpu_events(weights):
    """Events of steps on a GPU, as the profiler's format is documented: 2 tables of 32 columns, 600 lookups, batch 100.

    Weights are the sizes of tensors in four kinds of memory.
    """
    tables = [[2], [2], [3]]
    forward = [*weights, *tables, [], [], [3], [600], [201]]
    backward = [[100, 64], *weights, *tables, [], [], [3], [], [600], [201]]
    return [
        _op(_POOLED, 100, 40, forward, [""] * 7 + ["64", "32"]),
        *_kernel_of(1, 110, 300),
        *_kernel_of(2, 120, 200),
        *_kernel_of(3, 200, 999),  # of another operator
        *_kernel_of(4, 115, 999, thread=2),  # at the same time, by another thread
        _op(_BACK, 1000, 40, backward, [""] * 15, thread=2),
        *_kernel_of(5, 1010, 1500, thread=2),
    ]
