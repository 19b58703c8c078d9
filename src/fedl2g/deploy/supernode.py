"""Runs Flower's SuperNode as a child process of a site; the arguments are those of `flower-supernode`."""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import entry_points

from fedl2g.deploy.children import end_with_parent

COMMAND = "flower-supernode"


def main() -> None:
    """Run the command `flower-supernode` in this process, which ends with the process that started it."""
    end_with_parent(orderly=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    (command,) = entry_points(group="console_scripts", name=COMMAND)
    sys.argv[0] = COMMAND
    command.load()()
    # Flower returns when it gives its connection up, as for a certificate that has expired. Its Runtime API would keep
    # the process alive, and the site would wait for messages that cannot come.
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
