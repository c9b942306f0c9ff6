# SPDX-License-Identifier: MIT

"""Slurm on two hosts (namespaces.py): Debian's daemons, with all their files
in one folder and all their ports in the hosts. They end with the hosts. Used
by slurm.py."""

import os
import shutil
import subprocess
import time

from checkpoint_runs import check
from host_jobs import name_of, said_by
from namespaces import Hosts

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel",
            "scontrol", "squeue", "sinfo")
NODES = 2
# The nodes declare more CPUs than exist, so that no job waits for another.
CONFIGURATION = """\
ClusterName=qlora
SlurmctldHost=node0(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={work}/munge.socket
StateSaveLocation={work}/state
SlurmdSpoolDir={work}/spool.%n
SlurmctldPidFile={work}/slurmctld.pid
SlurmdPidFile={work}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0
MailProg=/bin/true
NodeName=node0 NodeAddr=10.77.0.1 CPUs=64
NodeName=node1 NodeAddr=10.77.0.2 CPUs=64
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def missing_programs():
    # Debian's daemons are in sbin, which is not on the path of all users.
    path = os.environ["PATH"] + ":/usr/sbin"
    return [name for name in PROGRAMS if not shutil.which(name, path=path)]


class Cluster:
    def __init__(self, work):
        self.work = os.path.join(work, "slurm")
        self.hosts = Hosts(NODES, work)
        self.environment = {
            "SLURM_CONF": os.path.join(self.work, "slurm.conf"),
            "PATH": os.environ["PATH"] + ":/usr/sbin"}

    def __enter__(self):
        self.hosts.__enter__()
        try:
            self.write_files()
            self.start_daemons()
        except BaseException:
            self.hosts.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.hosts.__exit__()

    def write_files(self):
        for name in ("state", *(f"spool.node{n}" for n in range(NODES))):
            os.makedirs(os.path.join(self.work, name))
        with open(self.environment["SLURM_CONF"], "w") as file:
            file.write(CONFIGURATION.format(work=self.work))
        # Without this file, Slurm would look for the cgroup version in /sys,
        # which does not exist in a network namespace.
        with open(os.path.join(self.work, "cgroup.conf"), "w") as file:
            file.write("CgroupPlugin=cgroup/v1\n")
        key = os.open(os.path.join(self.work, "munge.key"),
                      os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(key, os.urandom(128))
        os.close(key)

    def start_daemons(self):
        place = os.path.join(self.work, "munge")
        files = [f"--{kind}={place}.{kind.split('-')[0]}" for kind in
                 ("socket", "key-file", "pid-file", "seed-file", "log-file")]
        self.daemon(0, "munged", "--foreground", "--force", *files)
        self.wait("munged", lambda: os.path.exists(place + ".socket"))
        self.daemon(0, "slurmctld", "-D", "-c")
        for node in range(NODES):
            self.daemon(node, "slurmd", "-D", "-N", f"node{node}")
        self.wait("Slurm", lambda: self.call(
            "sinfo", "--noheader", "--format", "%T %D",
            code=None).strip() == f"idle {NODES}")

    def daemon(self, node, *command):
        log = os.path.join(self.work, f"{command[0]}.{node}.log")
        with open(log, "w") as file:
            self.hosts.all[node].popen(command, self.environment, stdout=file,
                                       stderr=file, stdin=subprocess.DEVNULL)

    def wait(self, what, condition, seconds=20):
        deadline = time.monotonic() + seconds
        while not condition():
            check(time.monotonic() < deadline, what, "not within", seconds,
                  "s\n", self.logs())
            time.sleep(0.05)

    def logs(self):
        """Returns the last lines of each daemon's log."""
        text = ""
        for name in sorted(os.listdir(self.work)):
            if name.endswith(".log"):
                with open(os.path.join(self.work, name)) as file:
                    text += name + ":\n" + "".join(file.readlines()[-15:])
        return text

    def start(self, *command, **variables):
        """Starts a command on the first node, as a user would."""
        return self.hosts.all[0].popen(
            command, {**self.environment, **variables},
            cwd=os.path.dirname(self.work), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def call(self, *command, code=0, seconds=60, **variables):
        """Runs a command on the first node and returns its output. `code`: the
        expected exit code, None for any."""
        process = self.start(*command, **variables)
        text = said_by(process, " ".join(command), seconds)
        check(code is None or process.returncode == code, command[0],
              "exit code", process.returncode, "\n", text)
        return text

    def state(self, job):
        """Returns the state of a job, such as "RUNNING"; empty if Slurm no
        longer lists it."""
        return self.call("squeue", "--noheader", "--format", "%T", "--jobs",
                         job, code=None).strip()

    def ranks(self, node):
        return [pid for pid in self.hosts.all[node].pids()
                if name_of(pid) == "qlora-run"]

    def all_ranks(self):
        return [pid for node in range(NODES) for pid in self.ranks(node)]
