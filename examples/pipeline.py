"""Measures this CPU, pre-trains cost models, searches plans and runs them, in about two minutes:

python examples/pipeline.py
"""

import argparse
import tempfile
from pathlib import Path

import neuroshard as ns

NUM_DEVICES, BATCH_SIZE = 2, 512
SEARCHERS = ("neuroshard", "neuroshard_published", "dim_greedy", "random")


def main(folder: Path, num_calls: int = 200, num_exchanges: int = 60) -> dict[str, tuple[float, float]]:
    """Run the four stages in a folder; return predicted and measured cost by searcher, in ms."""
    tables = ns.load_tables("dlrm_like", num_tables=40, batch_size=BATCH_SIZE)
    sizes = {"batch_sizes": [BATCH_SIZE], "num_devices": [NUM_DEVICES]}
    counts = {"num_compute_samples": num_calls, "num_comm_samples": num_exchanges, "num_second_pass": 16}
    ns.collect(tables, folder / "data", **sizes, **counts, max_noise=None)
    models = ns.pretrain(folder / "data", folder / "models")

    task = ns.Task(tables, ns.Topology(NUM_DEVICES, "8GiB"), BATCH_SIZE)
    simulator = ns.Simulator(models)
    files = [folder / f"{searcher}.json" for searcher in SEARCHERS]
    for searcher, file in zip(SEARCHERS, files, strict=True):
        ns.search(task, simulator, searcher).save(file)
    measured = ns.evaluate(files, folder / "measured")
    return {entry.method: (entry.predicted_ms, entry.measured_ms) for entry in measured.entries}


if __name__ == "__main__":  # collect and evaluate start processes, which import this file
    argparse.ArgumentParser(description=__doc__).parse_args()  # shows --help, and has no options
    with tempfile.TemporaryDirectory() as folder:
        print("searcher              predicted ms  measured ms")
        for searcher, (predicted_ms, measured_ms) in main(Path(folder)).items():
            print(f"{searcher:<22}{predicted_ms:>12.2f}{measured_ms:>13.2f}")
