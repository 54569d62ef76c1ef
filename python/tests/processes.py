"""Helpers of tests that start processes."""

import os
import socket


def environment(**more):
    """This process's, without anything that would give a child a role."""
    roles = ("PADDLE_", "OPENFLEET_", "TRAINING_ROLE", "POD_IP", "CPU_NUM")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(roles)}
    return {**kept, **more}


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
