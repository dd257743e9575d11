"""Downloads one file over HTTP and verifies its known checksum."""

import hashlib
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from pathlib import Path

from testbed.shared.yaml_input import InputError
from testbed.training.datasets.base import Progress
from testbed.training.datasets.cache import replacing

_BLOCK_BYTES = 1 << 18
_SCHEMES = ("https", "http", "file")


def fetch(url: str, path: Path, *, sha256: str, progress: Progress, timeout_s: float = 30) -> None:
    """Download to a temporary file, verify it, and only then move it to `path`."""
    if urllib.parse.urlsplit(url).scheme not in _SCHEMES:
        raise InputError(f"{url}: valid schemes: {', '.join(_SCHEMES)}")
    total, done = hashlib.sha256(), 0
    with replacing(path) as temporary:
        try:
            with (
                urllib.request.urlopen(url, timeout=timeout_s) as response,  # noqa: S310
                temporary.open("wb") as file,
            ):
                length = int(response.headers.get("Content-Length") or 0)
                while block := response.read(_BLOCK_BYTES):
                    file.write(block)
                    total.update(block)
                    done += len(block)
                    progress(done, length or None)
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", None) or error
            raise InputError(f"{url}: not downloaded: {reason}") from None
        if length and done < length:
            raise InputError(f"{url}: not downloaded: {done} of {length} bytes came")
        if total.hexdigest() != sha256.lower():
            raise InputError(
                f"{url}: not kept: its SHA-256 is {total.hexdigest()}, expected {sha256.lower()}"
            )
