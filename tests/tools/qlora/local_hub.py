# SPDX-License-Identifier: MIT
"""A local server that answers like the Hugging Face hub, as far as
huggingface_hub needs. Its repositories are folders, each with one commit."""

import base64
import hashlib
import http.server
import json
import os
import re
import threading
from urllib.parse import unquote

COMMIT = "1234567890abcdef1234567890abcdef12345678"


class Hub:
    """The server. `folders`: the folder of each repository, "org/name" for a
    model, "datasets/org/name" for a data set.
    `requests`: all requests so far. `gated`: the repositories that cannot be
    read. The token hf_right identifies "me", who may write."""

    def __init__(self, folders):
        self.folders = folders
        self.gated = set()
        self.requests = []
        self.pushed = {}  # files by repository
        self.private = {}
        self.refuses_commits = False
        hub = self

        class Handler(_Handler):
            pass
        Handler.hub = hub
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0),
                                                      Handler)
        self.thread = threading.Thread(target=self.server.serve_forever,
                                       args=(0.01,), daemon=True)
        self.thread.start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def fetched(self):
        """Returns the names of the files that were downloaded."""
        return sorted(path.rsplit("/", 1)[1] for method, path in self.requests
                      if method == "GET" and "/resolve/" in path)


def _hash(path):
    with open(path, "rb") as file:
        return hashlib.sha1(file.read()).hexdigest()


def _tree(folder):
    paths = sorted(os.path.join(below, name)
                   for below, _, names in os.walk(folder) for name in names)
    return [{"type": "file", "path": os.path.relpath(path, folder),
             "oid": _hash(path), "size": os.path.getsize(path)}
            for path in paths]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        length = headers.pop("Content_Length", len(body))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, code, kind):
        self.answer(code, json.dumps({"error": kind}).encode(),
                    X_Error_Code=kind, X_Error_Message=kind)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0]
        self.hub.requests.append((self.command, path))
        model = re.fullmatch(
            r"/api/(?:models/)?((?:datasets/)?[^/]+/[^/]+)/"
            r"(?:revision|tree)/([^/]+)", path)
        file = re.fullmatch(
            r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = model or file
        folder = self.hub.folders.get(match[1]) if match else None
        if folder is None:
            self.refuse(401, "RepoNotFound")
        elif match[2] not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound")
        elif file and match[1] in self.hub.gated:
            self.refuse(403, "GatedRepo")
        elif model:
            self.send_json(
                _tree(folder) if "/tree/" in path else
                {"id": match[1], "sha": COMMIT, "private": False, "tags": [],
                 "downloads": 0, "likes": 0})
        else:
            self.send_content(os.path.join(folder, unquote(file[3])))

    def send_json(self, value, code=200):
        self.answer(code, json.dumps(value).encode(),
                    Content_Type="application/json")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.split("?")[0]
        self.hub.requests.append((self.command, path))
        commit = re.fullmatch(
            r"/api/models/(me/[^/]+)/(preupload|commit)/main", path)
        if self.headers.get("Authorization") != "Bearer hf_right":
            self.refuse(401, "Unauthorized")
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.send_json({"errors": [], "warnings": []})
        elif commit and commit[2] == "preupload":
            self.send_json({"files": [
                {"path": file["path"], "uploadMode": "regular",
                 "shouldIgnore": False}
                for file in json.loads(body)["files"]]})
        elif commit and not self.hub.refuses_commits:
            lines = [json.loads(line) for line in body.splitlines()]
            self.hub.pushed[commit[1]] = {
                line["value"]["path"]:
                base64.b64decode(line["value"]["content"])
                for line in lines if line["key"] == "file"}
            self.send_json({"commitOid": COMMIT, "commitUrl":
                            f"{self.hub.endpoint}/{commit[1]}/commit/{COMMIT}"})
        else:
            self.refuse(403, "Forbidden")

    def create(self, asked):
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        is_there = name in self.hub.private
        if not is_there:
            self.hub.private[name] = (asked.get("private") is True
                                      or asked.get("visibility") == "private")
        self.send_json({"url": f"{self.hub.endpoint}/{name}"},
                       409 if is_there else 200)

    def send_content(self, path):
        if not os.path.exists(path):
            self.refuse(404, "EntryNotFound")
            return
        with open(path, "rb") as file:
            content = file.read()
        self.answer(200, content, X_Repo_Commit=COMMIT,
                    ETag=f'"{_hash(path)}"')
