"""read_events.py - TensorBoard reads the event files of a run, and they say what metrics.jsonl says.

    $PEER_PYTHON bench/peers/read_events.py RUN      (a venv with the tensorboard package)
"""
import json, os, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = sys.argv[1]
events = EventAccumulator(os.path.join(run, "tensorboard"), size_guidance={"scalars": 0})
events.Reload()
want = {}
for line in open(os.path.join(run, "metrics.jsonl")):
    record = json.loads(line)
    for name, value in record.items():
        if name not in ("step", "time", "dropped"):
            want.setdefault(name, {})[record["step"]] = float(value)
bad = []
for name, steps in want.items():
    if name not in events.Tags()["scalars"]:
        bad.append(f"{name} is missing")
        continue
    got = {e.step: e.value for e in events.Scalars(name)}
    same = got.keys() == steps.keys() and all(
        abs(got[s] - v) <= 1e-6 * abs(v) or (got[s] != got[s] and v != v) or got[s] == v for s, v in steps.items())
    if not same:
        bad.append(f"{name} differs")
print(f"{len(want)} scalars, {max(map(len, want.values()))} steps: " + ("; ".join(bad) or "as in metrics.jsonl"))
sys.exit(bool(bad))
