"""A device plugin that offers the stand-in's GPUs: `python3 plugin.py FOLDER` tells the kubelet of `nvidia.com/gpu`.

FOLDER is where the stand-in's state lies on the node and in this pod. A container that is given a GPU gets its device
file as /dev/nvidia0 and its UUID in NVIDIA_VISIBLE_DEVICES. As the real one, it holds every GPU open while it runs.
It speaks the kubelet's v1beta1 API; the few messages are written by hand, so that nothing has to be generated.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped] # in the image of the test node alone
from setproctitle import setproctitle

RESOURCE = "nvidia.com/gpu"
SOCKETS = Path("/var/lib/kubelet/device-plugins")
ENDPOINT = "drills-test-gpu.sock"
SERVICE = "v1beta1.DevicePlugin"
CALL_TIMEOUT_S = 10.0


# ---- protobuf, as far as it is needed --------------------------------------------------------------------


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: bytes | str) -> bytes:
    """Return a field that holds text or another message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field that holds text or another message; there are no others here."""
    at = 0

    def number() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        length = number()
        if key & 7 == 2:
            yield key >> 3, message[at : at + length]
            at += length


# ---- the plugin ------------------------------------------------------------------------------------------


class Plugin:
    """Offers the GPUs of a state file until it is told to end."""

    def __init__(self, folder: Path) -> None:
        self.gpus: dict[str, Any] = {
            gpu["uuid"]: gpu for gpu in json.loads((folder / "state.json").read_text())["gpus"]
        }
        self.held = [os.open(gpu["device"], os.O_RDONLY) for gpu in self.gpus.values()]
        self.over = threading.Event()

    def listed(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        """Tell of all devices, once: none of them ever changes."""
        yield b"".join(field(1, field(1, uuid) + field(2, "Healthy")) for uuid in self.gpus)
        self.over.wait()

    def allocated(self, request: bytes, _context: Any) -> bytes:
        """Say what the containers get with their devices."""
        return b"".join(field(1, self._given(asked)) for number, asked in fields(request) if number == 1)

    def _given(self, asked: bytes) -> bytes:
        uuids = [uuid.decode() for number, uuid in fields(asked) if number == 1]
        env = field(1, field(1, "NVIDIA_VISIBLE_DEVICES") + field(2, ",".join(uuids)))
        mounts = [
            field(2, field(1, f"/dev/nvidia{n}") + field(2, self.gpus[uuid]["device"])) for n, uuid in enumerate(uuids)
        ]
        return env + b"".join(mounts)

    def serve(self) -> Any:
        """Begin to serve the kubelet."""
        server = grpc.server(futures.ThreadPoolExecutor(4))
        once = grpc.unary_unary_rpc_method_handler
        handlers = {
            "GetDevicePluginOptions": once(lambda _request, _context: b""),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.listed),
            "Allocate": once(self.allocated),
            "GetPreferredAllocation": once(lambda _request, _context: b""),
            "PreStartContainer": once(lambda _request, _context: b""),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        (SOCKETS / ENDPOINT).unlink(missing_ok=True)
        server.add_insecure_port(f"unix://{SOCKETS / ENDPOINT}")
        server.start()
        return server


def register() -> None:
    """Tell the kubelet that we are there."""
    with grpc.insecure_channel(f"unix://{SOCKETS / 'kubelet.sock'}") as channel:
        call = channel.unary_unary("/v1beta1.Registration/Register")
        call(field(1, "v1beta1") + field(2, ENDPOINT) + field(3, RESOURCE), timeout=CALL_TIMEOUT_S)


def main() -> None:
    """Offer the GPUs until SIGTERM."""
    setproctitle("nvidia-device-plugin")
    plugin = Plugin(Path(sys.argv[1]))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: plugin.over.set())
    server = plugin.serve()
    register()
    print("registered", flush=True)
    plugin.over.wait()
    server.stop(0.5).wait()


if __name__ == "__main__":
    main()
