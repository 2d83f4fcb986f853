#!/usr/bin/env python3
"""Reading speed of maxc on files that other programs wrote.

    make && PYTHON bench/peers/data_speed.py

PYTHON is one that has pyarrow, zstandard and array_record. Writes about 60 MB of text (the documentation
inside the Python packages, as in tokenizer_speed.py) as zstd JSON lines, Parquet and ArrayRecord into a
temporary folder, runs `maxc bench data` on each file, and compares with what is promised: 300 MB of text a
second for JSON lines and Parquet, 100,000 records a second at random for ArrayRecord, on one core in
processor time. Exit status 1 when a figure is below.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import pyarrow
import pyarrow.parquet
import zstandard
from array_record.python.array_record_module import ArrayRecordWriter

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from tokenizer_speed import ROOT, prose  # noqa: E402

RECORDS = 200_000


def write(folder, parts):
    docs = ["\n\n".join(parts[i:i + 8]) for i in range(0, len(parts), 8)] * 10
    lines = "".join(json.dumps({"id": i, "text": d}) + "\n" for i, d in enumerate(docs))
    (folder / "text.jsonl.zst").write_bytes(zstandard.ZstdCompressor(level=3).compress(lines.encode()))
    table = pyarrow.table({"text": docs, "id": list(range(len(docs)))})
    for codec in ("snappy", "zstd"):
        pyarrow.parquet.write_table(table, folder / f"{codec}.parquet", compression=codec)
    for options in ("group_size:1", "group_size:1,uncompressed"):
        writer = ArrayRecordWriter(str(folder / (options.split(",")[-1].replace(":", "_") + ".arrayrecord")), options)
        for i in range(RECORDS):
            writer.write(json.dumps({"text": parts[i % len(parts)]}).encode())
        writer.close()


def main():
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write(folder, prose(6_000_000).split("\n\n"))
        for path in sorted(folder.iterdir()):
            command = [ROOT / "build/maxc", "bench", "data", f"dataset_path={path}"]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            if path.suffix == ".arrayrecord":
                rate, least, unit = re.search(r"at random\s+([\d.e+]+) records/s", out)[1], 1e5, "records/s at random"
            else:
                rate, least, unit = re.search(r"in order\s+([\d.e+]+) MB of text", out)[1], 300, "MB of text/s"
            good = good and float(rate) >= least
            print(f"{path.name:28} {float(rate):10.0f} {unit}{'' if float(rate) >= least else '  BELOW ' + str(least)}")
    sys.exit(0 if good else 1)


main()
