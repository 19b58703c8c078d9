"""Downloads against a server on this machine: resumed, checked, and a sentence for whatever goes wrong."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedl2g.datasets import download
from fedl2g.datasets.download import RemoteFile, fetch
from fedl2g.errors import DataError

BODY = bytes(range(256)) * 4096  # 1 MB
MD5 = hashlib.md5(BODY).hexdigest()


class FileServer:
    """Serves BODY at /file.bin with ranges, and breaks off as often as told."""

    def __init__(self) -> None:
        self.break_after: list[int] = []
        """For each coming response: send only that many bytes, then close."""
        self.ranges: list[str | None] = []
        self.honours_ranges = True
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.ranges.append(self.headers["Range"])
                if self.path != "/file.bin":
                    self.send_error(404)
                    return
                start = 0
                if owner.honours_ranges and self.headers["Range"]:
                    start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
                if start >= len(BODY):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(BODY)}")
                    self.end_headers()
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
                self.send_header("Content-Length", str(len(BODY) - start))
                self.end_headers()
                stop = start + owner.break_after.pop(0) if owner.break_after else len(BODY)
                self.wfile.write(BODY[start:stop])

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/file.bin"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    served = FileServer()
    thread = threading.Thread(target=served.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.server.shutdown()
    served.server.server_close()
    thread.join()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def test_a_file_is_downloaded_once_with_progress(server: FileServer, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch(RemoteFile(server.address, MD5), tmp_path / "new", lambda *step: seen.append(step))
    assert path.read_bytes() == BODY
    assert ("Downloading file.bin", len(BODY), len(BODY)) in seen
    assert seen[-1] == ("Checking file.bin", len(BODY), len(BODY))
    assert fetch(RemoteFile(server.address, MD5), tmp_path / "new") == path
    assert server.ranges == [None]
    assert names(tmp_path / "new") == {"file.bin"}


def test_a_broken_connection_is_resumed_where_it_stopped(server: FileServer, tmp_path: Path) -> None:
    server.break_after = [1000, 2000]
    assert fetch(RemoteFile(server.address, MD5), tmp_path).read_bytes() == BODY
    assert server.ranges == [None, "bytes=1000-", "bytes=3000-"]


def test_the_next_run_goes_on_from_the_part_of_the_last(server: FileServer, tmp_path: Path) -> None:
    server.break_after = [1000, 0, 0, 0]
    with pytest.raises(DataError, match="broke off after 1000 of"):
        fetch(RemoteFile(server.address, MD5), tmp_path)
    assert names(tmp_path) == {"file.bin.part"}
    assert fetch(RemoteFile(server.address, MD5), tmp_path).read_bytes() == BODY
    assert server.ranges[-1] == "bytes=1000-"
    assert names(tmp_path) == {"file.bin"}


def test_a_part_that_is_already_whole_is_not_downloaded_again(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY)
    assert fetch(RemoteFile(server.address, MD5), tmp_path).read_bytes() == BODY
    assert len(server.ranges) == 1


def test_a_part_longer_than_the_file_is_thrown_away(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY + b"more")
    assert fetch(RemoteFile(server.address, MD5), tmp_path).read_bytes() == BODY


def test_a_server_without_ranges_starts_the_file_again(server: FileServer, tmp_path: Path) -> None:
    server.honours_ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"old")
    assert fetch(RemoteFile(server.address, MD5), tmp_path).read_bytes() == BODY


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"not the published file.bin .*{MD5}.* by hand"):
        fetch(RemoteFile(server.address, "0" * 32), tmp_path)
    assert names(tmp_path) == set()


def test_a_wrong_file_put_there_by_hand_is_refused_and_kept(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"is not the published file .* delete it"):
        fetch(RemoteFile(server.address, MD5), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"something else"
    assert server.ranges == []


def test_a_file_put_there_by_hand_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(BODY)
    assert fetch(RemoteFile("http://127.0.0.1:9/file.bin", MD5), tmp_path) == tmp_path / "file.bin"


def test_a_missing_page_is_not_asked_for_again(server: FileServer, tmp_path: Path) -> None:
    address = server.address.replace("file.bin", "gone.bin")
    with pytest.raises(DataError, match="404"):
        fetch(RemoteFile(address), tmp_path)
    assert len(server.ranges) == 1


def test_offline_says_which_file_from_where_and_where_to_put_it(server: FileServer, tmp_path: Path) -> None:
    address = "http://127.0.0.1:9/file.bin"  # the discard port, where nothing listens
    with pytest.raises(DataError) as caught:
        fetch(RemoteFile(address), tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{address}: file.bin cannot be downloaded")
    assert message.endswith(f"put the file into {tmp_path} by hand")
