"""Measures the simulated GPU: runs build/simgpu/bench three times on one host thread, keeps each kernel's fastest run,
prints a table and writes results/simulator.json. The program itself checks its kernels' results."""

import datetime
import json
import os
import platform
import re
import subprocess
import sys

COMMAND = ["build/simgpu/simgpu", "--threads", "1", "--verbose", "build/simgpu/bench"]
LINE = re.compile(r"simgpu: (\w+)\(.*\): (\d+) warp instructions, ([\d.]+) ms")
PRODUCTS = re.compile(r"(\w+): (\d+) products")  # of a kernel whose instructions are no measure: so many wgmma it executed


def processor():
    """The processor's own name for itself, as Linux tells it."""
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    fastest = {}
    for _ in range(3):
        run = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(f"bench-sim: {' '.join(COMMAND)} failed with status {run.returncode}:\n{run.stdout}{run.stderr}")
        products = dict(PRODUCTS.findall(run.stdout))
        for kernel, instructions, ms in LINE.findall(run.stderr):
            if kernel in products:
                metric, rate = "wgmma m64n256k16/s", round(int(products[kernel]) / float(ms) * 1e3)
            else:
                metric, rate = "million warp instructions/s", round(int(instructions) / float(ms) / 1e3, 1)
            if kernel not in fastest or rate > fastest[kernel]["value"]:
                fastest[kernel] = {"kernel": kernel, "warp_instructions": int(instructions), "metric": metric, "value": rate}
    if not fastest:
        sys.exit("bench-sim: the simulator said nothing of its speed")
    records = [
        {
            **fields,
            "processor": processor(),
            "threads": 1,
            "commit": os.environ.get("COOKBOOK_COMMIT", ""),
            "date": datetime.date.today().isoformat(),
            "command": "make bench-sim",
        }
        for fields in fastest.values()
    ]
    os.makedirs("results", exist_ok=True)
    with open("results/simulator.json.part", "w", encoding="utf-8") as out:
        json.dump(records, out, indent=2)
        out.write("\n")
    os.replace("results/simulator.json.part", "results/simulator.json")
    print(f"simulated GPU on {processor()}, one thread:")
    for r in records:
        print(f"  {r['kernel']:<16} {r['value']:8} {r['metric']}")


main()
