#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Hosts on one machine: network namespaces on a bridge, with faults between
them.

Each host has its own address, name, processes and /proc, so that its ranks
treat other hosts as other machines. The network between them is in a namespace
too: the machine's own network is not changed, and all hosts and links are gone
when the last namespace is removed. It needs root, iproute2 and, for loss, nft.

    namespaces.py relay PORT PORT SECONDS     (used by Hosts.delay itself)
"""

import fcntl
import heapq
import itertools
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

# Runs a command on a host, after setting its /etc/hosts and its name. The shell
# of this script remains the host's first process: when it ends, all others end.
ENTER = """mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && "$@" &
trap 'kill -TERM $!' TERM
wait $!; code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
exit $code"""
TIME_WAIT = "06"
numbers = itertools.count()


def why_not():
    """Returns why this machine cannot have hosts, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc", "nft", "unshare"):
        if not shutil.which(tool):
            return f"there is no {tool}: scripts/install.sh --tests"
    tried = subprocess.run(["unshare", "--net", "--pid", "--fork", "--uts",
                            "--mount-proc", "ip", "link", "add", "v0", "type",
                            "veth", "peer", "name", "v1"], capture_output=True,
                           text=True)
    return (None if tried.returncode == 0 else
            "namespaces are not allowed: " + tried.stderr.strip())


def call(*words, check=True):
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Host:
    def __init__(self, hosts, number):
        self.hosts, self.number = hosts, number
        self.namespace = f"{hosts.prefix}h{number}"
        self.name = f"node{number}"
        self.address = f"10.77.0.{number + 1}"
        self.port = f"port{number}"  # its end in the switch
        self.processes = []

    def popen(self, command, environment=None, **named):
        """Starts a command on the host."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", "--pid",
             "--fork", "--kill-child", "--mount-proc", "--uts", "bash", "-c",
             ENTER, "host", self.hosts.names, self.name, *command],
            env={**os.environ, **(environment or {})}, text=True,
            start_new_session=True, **named)
        self.processes.append(process)
        return process

    def call(self, *words, check=True):
        return call("ip", "netns", "exec", self.namespace, *words, check=check)

    def pids(self):
        return [int(pid) for pid in
                call("ip", "netns", "pids", self.namespace).split()]

    def kill(self):
        """Kills all processes of the host at once, with SIGKILL."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        while pids := self.pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)

    def plug(self, state):
        """Sets the cable "up" or "down"."""
        call("ip", "-n", self.hosts.switch, "link", "set", self.port, state)

    def lose(self, percent):
        """Makes the host lose that percentage of incoming packets."""
        self.call("nft", "add table ip loss; add chain ip loss in { type "
                  "filter hook input priority 0 ; }; add rule ip loss in "
                  f"numgen random mod 100 < {percent} drop")

    def narrow(self, rate):
        self.call("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf",
                  "rate", rate, "burst", "16k", "latency", "200ms")

    def sockets(self):
        """Returns the host's TCP sockets, except those in TIME_WAIT."""
        found = []
        for table in ("tcp", "tcp6"):
            lines = self.call("cat", f"/proc/net/{table}").splitlines()[1:]
            found += [line for line in lines if line.split()[3] != TIME_WAIT]
        return found

    def leftovers(self):
        return [*map(str, self.pids()), *self.sockets()]


class Hosts:
    """`count` hosts, which reach each other as node0, node1, ..."""

    def __init__(self, count, work):
        self.prefix = f"ql{os.getpid()}n{next(numbers)}"
        self.switch = self.prefix + "s"
        self.names = os.path.join(work, self.prefix + ".names")
        self.all = [Host(self, number) for number in range(count)]
        self.relays = []

    def __enter__(self):
        with open(self.names, "w") as file:
            file.write("127.0.0.1 localhost\n")
            for host in self.all:
                file.write(f"{host.address} {host.name}\n")
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        call("ip", "netns", "add", self.switch)
        inside = ("ip", "-n", self.switch, "link")
        call(*inside, "add", "br0", "type", "bridge")
        call(*inside, "set", "br0", "up")
        for host in self.all:
            call("ip", "netns", "add", host.namespace)
            call(*inside, "add", host.port, "type", "veth", "peer", "name",
                 "eth0", "netns", host.namespace)
            call(*inside, "set", host.port, "master", "br0", "up")
            there = ("ip", "-n", host.namespace)
            call(*there, "addr", "add", host.address + "/24", "dev", "eth0")
            call(*there, "link", "set", "lo", "up")
            call(*there, "link", "set", "eth0", "up")

    def delay(self, seconds):
        """Delays the packets between two hosts by `seconds` each way, with
        relay()."""
        for host in self.all:
            call("ip", "-n", self.switch, "link", "set", host.port, "nomaster")
            host.call(sys.executable, __file__, "plain", "eth0")
        self.relays.append(subprocess.Popen(
            ["ip", "netns", "exec", self.switch, sys.executable, __file__,
             "relay", *(host.port for host in self.all), str(seconds)]))

    def __exit__(self, *_):
        for relay in self.relays:
            relay.kill()
            relay.wait()
        for host in self.all:
            if os.path.exists(f"/run/netns/{host.namespace}"):
                host.kill()
            for process in host.processes:
                process.wait()
                for stream in (process.stdout, process.stderr):
                    if stream:
                        stream.close()
            call("ip", "netns", "del", host.namespace, check=False)
        call("ip", "netns", "del", self.switch, check=False)


# ----------------------------------------------------------------- relay ---

def send_plain(interface):
    """Makes an interface send packets as on a wire: not oversized, and with
    checksums."""
    turn_off_sums = struct.pack("II", 0x17, 0)  # ETHTOOL_STXCSUM
    buffer = bytearray(turn_off_sums)
    import ctypes
    address = ctypes.addressof((ctypes.c_char * 8).from_buffer(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8946,  # SIOCETHTOOL
                    struct.pack("16sP", interface.encode(), address))


def relay(first, second, seconds):
    """Relays frames between two interfaces, each delayed by `seconds`."""
    ends = []
    for interface in (first, second):
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW,
                            socket.htons(0x0003))  # ETH_P_ALL
        end.bind((interface, 0))
        ends.append(end)
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting, order = [], itertools.count()
    while True:
        left = waiting[0][0] - time.monotonic() if waiting else None
        ready, _, _ = select.select(ends, [], [],
                                    None if left is None else max(0, left))
        for end in ready:
            frame, about = end.recvfrom(65536)
            if about[2] != socket.PACKET_OUTGOING:
                heapq.heappush(waiting, (time.monotonic() + seconds,
                                         next(order), other[end], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(waiting)
            end.send(frame)


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        send_plain(sys.argv[2])
    else:
        relay(sys.argv[2], sys.argv[3], float(sys.argv[4]))
