"""The command `fedl2g`, also as `python -m fedl2g`."""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command; while its modules are loaded, Ctrl-C ends it in silence."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fedl2g.cli import main

    main()


if __name__ == "__main__":
    main()
