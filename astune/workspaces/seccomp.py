"""The system calls that no command in a sandbox may make, as the filter that bubblewrap loads."""

from __future__ import annotations

import os
import struct

from astune.errors import SetupError

MACHINES: dict[str, tuple[int, int]] = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The kernel's number of each machine, and its column below."""
REFUSED: dict[str, tuple[int, int]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "syslog": (103, 116),
    "acct": (163, 89),
    "swapon": (167, 224),
    "reboot": (169, 142),
}
"""Memory that no limit counts, other processes' memory and descriptors, mounts, and the kernel's own affairs."""
SOCKET = (41, 198)
FAMILIES = (1, 2, 10, 16)
"""The sockets that may be made: UNIX, INET, INET6 and NETLINK are the sandbox's own. VSOCK, which no namespace parts,
would lead to other sandboxes and to the machine's host."""
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, KILL, NOT_PERMITTED = 0x7FFF0000, 0x80000000, 0x00050001
X32 = 0x40000000
"""Numbers from here on are those of x86's other calling convention."""


def write_filter() -> bytes:
    """Write the filter for this machine, in the kernel's own format. Raises SetupError on a machine without one."""
    machine = os.uname().machine
    if machine not in MACHINES:
        raise SetupError(f"the sandbox runs on {' and '.join(MACHINES)}, not on {machine}")
    number, column = MACHINES[machine]
    refused = [calls[column] for calls in REFUSED.values()]
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, number), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    below, families = len(refused), len(FAMILIES)
    steps.append((AT_LEAST, below + families + 2, 0, X32))
    steps += [(EQUAL, below - place + families + 1, 0, call) for place, call in enumerate(refused)]
    steps += [(EQUAL, 0, families + 2, SOCKET[column]), (LOAD, 0, 0, 16)]  # its first argument
    steps += [(EQUAL, families - place, 0, family) for place, family in enumerate(FAMILIES)]
    steps += [(RETURN, 0, 0, NOT_PERMITTED), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
