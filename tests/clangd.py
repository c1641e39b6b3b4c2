"""Query clangd as an editor does."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from common.base.paths import ROOT

LIMIT = 300  # seconds for one file


def problems(clangd: str, commands: Path, file: Path) -> list[str]:
    """Return the errors that clangd shows in a file. commands: the folder of the database and of
    clangd's settings."""
    command = [clangd, f"--compile-commands-dir={commands}", "--check-lines=1", f"--check={file}"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, env=_settings(commands)
    )
    found = re.findall(r"^E\[[\d:.]+\] (.*)$", done.stderr, re.MULTILINE)
    assert "All checks completed" in done.stderr, done.stderr[-2000:]
    assert bool(found) == bool(done.returncode), done.stderr[-2000:]
    return found


def _settings(commands: Path) -> dict[str, str]:
    """Return the environment in which clangd reads the folder's `clangd/config.yaml`."""
    return {**os.environ, "XDG_CONFIG_HOME": str(commands)}


class Clangd:
    """A running clangd that has one file open."""

    def __init__(self, clangd: str, commands: Path, file: Path):
        self._process = subprocess.Popen(
            [clangd, f"--compile-commands-dir={commands}", "--background-index=false"],
            cwd=ROOT,
            env=_settings(commands),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._number = 0
        self.text = file.read_text(encoding="utf-8")
        self._document = {"uri": file.as_uri()}
        self.ask("initialize", {"processId": None, "rootUri": ROOT.as_uri(), "capabilities": {}})
        document = {**self._document, "languageId": "cuda-cpp", "version": 1, "text": self.text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})

    def at(self, method: str, words: str) -> Any:
        """Return the answer to textDocument/`method` of the last of these words in the file."""
        before = self.text[: self.text.index(words) + len(words) - 1]
        position = {"line": before.count("\n"), "character": len(before.split("\n")[-1])}
        place = {"textDocument": self._document, "position": position}
        return self.ask(f"textDocument/{method}", place)

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        while True:
            answer = self._read()
            if answer.get("id") == self._number and "method" not in answer:
                return answer["result"]

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        length = 0
        while (line := self._process.stdout.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        assert length, "clangd has ended"
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message

    def __enter__(self) -> Clangd:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()
