#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The JobSets of docs/launchers.md, without Kubernetes.

    jobset.py --tools build/bin

Two hosts (namespaces.py) are the pods: they have the pods' names, and run the
container's command with its variables, filled in as Kubernetes does. The
results have the bytes of qlora-run --gpus 2. Needs torchrun, PyYAML and the
requirements of hosts.py.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile

import yaml

from checkpoint_runs import Failure, Runs, check
from host_jobs import said_by
from launcher_page import TRAINING, blocks
from namespaces import Hosts, why_not

STEPS = 14
SECRET = "0123456789abcdef"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def pods_of(jobset):
    """Returns the names and the specification of the pods of a JobSet, which
    has one job."""
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    check(spec["completionMode"] == "Indexed" and
          spec["parallelism"] == spec["completions"], spec)
    name = jobset["metadata"]["name"]
    return ([f"{name}-{job['name']}-0-{number}.{name}"
             for number in range(spec["completions"])],
            spec["template"]["spec"])


def check_volumes(pod, container):
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    check(mounted == {volume["name"] for volume in pod["volumes"]},
          "other volumes than those that are mounted:", mounted)


def value_of(entry, number):
    source = entry.get("valueFrom", {})
    if "secretKeyRef" in source:
        return SECRET
    if "fieldRef" in source:
        check(source["fieldRef"]["fieldPath"] == INDEX, source)
        return str(number)
    check(isinstance(entry["value"], str), entry["name"],
          "is no text, and Kubernetes takes no other")
    return entry["value"]


def command_of(container, runs, folder):
    """Returns the command of a container, which is one rank, for the demo."""
    words = container["command"]
    training = TRAINING.split()
    check(words[-len(training):] == training, "another command:", words)
    launcher = ["1" if word == "8" else word for word in
                words[:-len(training)]]
    if launcher:
        # Debian's torch 1.13 needs -r and -t in Python 3.11 (enums).
        launcher[1:1] = ["-r", "1", "-t", "1", "--log_dir", folder + ".logs"]
    return [*launcher, *runs.command(folder, *training[6:])]


def run_pods(names, pod, container, runs, folder):
    check_volumes(pod, container)
    hosts = Hosts(len(names), runs.work)
    for host, name in zip(hosts.all, names):
        host.name = name
    with hosts:
        processes = [host.popen(
            command_of(container, runs, folder),
            {entry["name"]: value_of(entry, number)
             for entry in container["env"]},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=runs.work)
            for number, host in enumerate(hosts.all)]
        texts = [said_by(process, name, 60)
                 for process, name in zip(processes, names)]
        check(not any(process.returncode for process in processes), texts)
        check("batch    8 rows x 2 ranks" in "".join(texts) and
              "secret" not in "".join(texts), texts)
    runs.compare(folder, "--gpus", "2")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"jobset.py: skipped: {reason}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    whole, changes = map(yaml.safe_load, blocks("Kubernetes", "yaml"))
    names, pod = pods_of(whole)
    (container,) = pod["containers"]
    several = {"volumes": changes.pop("volumes")}
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(os.path.abspath(arguments.tools), work, STEPS)
        run_pods(names, pod, container, runs, runs.folder("alone"))
        print("a pod for each rank: the same bytes", flush=True)
        run_pods(names, several, {**container, **changes}, runs,
                 runs.folder("several"))
        print("torchrun in each pod: the same bytes")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"jobset.py: {failure}")
