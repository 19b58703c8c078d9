"""The process of a site that trains: serves one request after another, and keeps torch loaded in between."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from fedl2g.deploy.children import end_with_parent


def main() -> None:
    """Serve the connection whose file descriptor is the first argument, for the site whose file is the second."""
    end_with_parent(orderly=False)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from fedl2g.deploy.answering import answer
    from fedl2g.deploy.package import check_package
    from fedl2g.deploy.site_file import read_site
    from fedl2g.deploy.site_log import log_to_stderr
    from fedl2g.engines.flower.records import pack_records, unpack_records

    log_to_stderr()
    connection, path = Connection(int(sys.argv[1])), Path(sys.argv[2])
    file = read_site(path, trust=True)  # the institution itself started its site with this file
    check_package(file.package, path)
    with suppress(EOFError, OSError):  # the site has ended
        connection.send_bytes(b"ready")
        while True:
            kind = connection.recv_bytes().decode()
            records = unpack_records(connection.recv_bytes())
            connection.send_bytes(pack_records(answer(file, kind, records)))


if __name__ == "__main__":
    main()
