"""The CPU behind an rpc-server of our own as a device: its memory is not the host's, so graphs are built for it as for a GPU."""

import socket
import subprocess
import time

from .core import Failure
from .programs import check_program, ending_with_us
from .server import free_port

START_SECONDS = 30


class RpcDevice:
    """Runs while its block does, and ends with this process even when that is killed. `options` are bridge-test's to use it and no other."""

    def __init__(self, program):
        self.program = program
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.options = ("--rpc", self.endpoint, "--device", "RPC0")

    def __enter__(self):
        check_program(self.program)
        host, port = self.endpoint.split(":")
        self.process = subprocess.Popen(ending_with_us([self.program, "-H", host, "-p", port, "-t", 1]), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.wait_until_ready(host, int(port))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def wait_until_ready(self, host, port):
        start = time.monotonic()
        while time.monotonic() - start < START_SECONDS:
            if self.process.poll() is not None:
                raise Failure(f"rpc-server ended with code {self.process.returncode} before it answered at {self.endpoint}")
            with socket.socket() as probe:
                if probe.connect_ex((host, port)) == 0:
                    return
            time.sleep(0.05)
        raise Failure(f"rpc-server did not answer at {self.endpoint} within {START_SECONDS} s")
