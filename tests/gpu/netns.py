"""Two network namespaces joined by a veth pair, as two hosts on one cable: made through rtnetlink, so
that neither ip nor names in /run are needed. They end with the processes that hold them."""

import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

NAME = "veth0"  # of the interface, in both
RTM_NEWLINK, RTM_NEWADDR = 16, 20
NLM_REQUEST_ACK, NLM_CREATE_EXCL = 0x5, 0x600
IFLA_IFNAME, IFLA_LINKINFO, IFLA_NET_NS_PID = 3, 18, 19
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
IFF_UP = 1


def attribute(kind, data):
    return struct.pack("HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def link(index=0, flags=0):
    """A struct ifinfomsg that sets or clears IFF_UP."""
    return struct.pack("BxHiII", socket.AF_UNSPEC, 0, index, flags, IFF_UP)


def ask(kind, flags, payload):
    """Sends one message to the kernel; OSError if it refuses."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as s:
        s.send(struct.pack("IHHII", 16 + len(payload), kind, NLM_REQUEST_ACK | flags, 1, 0)
               + payload)
        error, = struct.unpack_from("i", s.recv(4096), 16)
    if error:
        raise OSError(-error, f"rtnetlink: message {kind}")


def make_pair(pids):
    """A veth pair with one end in the namespace of each process."""
    ends = [attribute(IFLA_IFNAME, NAME.encode() + b"\0")
            + attribute(IFLA_NET_NS_PID, struct.pack("I", pid)) for pid in pids]
    info = attribute(IFLA_INFO_KIND, b"veth") + attribute(
        IFLA_INFO_DATA, attribute(VETH_INFO_PEER, link() + ends[1]))
    ask(RTM_NEWLINK, NLM_CREATE_EXCL, link() + ends[0] + attribute(IFLA_LINKINFO, info))


def bring_up(address):
    """In the namespace of this process: the interface gets the address; it and the loopback are up."""
    packed = socket.inet_aton(address)
    index = socket.if_nametoindex(NAME)
    ask(RTM_NEWADDR, NLM_CREATE_EXCL,
        struct.pack("BBBBi", socket.AF_INET, 24, 0, 0, index)
        + attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed))
    for i in index, socket.if_nametoindex("lo"):
        ask(RTM_NEWLINK, 0, link(i, IFF_UP))


class Pair:
    """The two, by number. OSError where they cannot be made."""

    def __init__(self):
        own = Path("/proc/self/ns/net").readlink()
        self.holders = []
        try:
            for _ in range(2):
                self.holders.append(subprocess.Popen(  # which end with this process, too
                    ["unshare", "--net", "cat"], stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            for h in self.holders:
                while Path(f"/proc/{h.pid}/ns/net").readlink() == own:
                    if h.poll() is not None:
                        raise PermissionError("unshare --net has failed")
                    time.sleep(0.01)
            make_pair([h.pid for h in self.holders])
            for i in range(2):
                subprocess.run([*self.command(i), sys.executable, __file__, f"10.77.0.{i + 1}"],
                               check=True)
        except subprocess.CalledProcessError as e:
            self.close()
            raise OSError(str(e)) from e
        except OSError:
            self.close()
            raise

    def command(self, i):
        """What a program is run by inside the namespace."""
        return ["nsenter", f"--net=/proc/{self.holders[i].pid}/ns/net"]

    def close(self):
        for h in self.holders:
            h.kill()
            h.wait()


if __name__ == "__main__":
    bring_up(sys.argv[1])
