#!/usr/bin/env python3
"""A client of palyrad's HTTP API on its unix socket, in the standard library alone.

    palyra_client.py fs.read_file '{"workspace": "src", "path": "README.md"}'

Without arguments it lists the tools. An agent's loop calls call() with what its model chose:
the names of `palyra tools export` have an underscore in place of the dot, see tool_name().
"""
import http.client
import json
import os
import socket
import sys


class Palyrad(http.client.HTTPConnection):
    """One connection; the kernel tells palyrad who is at this end."""

    def __init__(self, path):
        super().__init__("palyra")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)

    def ask(self, method, operation, body=None):
        self.request(method, "/api/v1" + operation, body and json.dumps(body), {"Content-Type": "application/json"} if body else {})
        answer = self.getresponse()
        document = json.load(answer)
        if answer.status >= 400:  # RFC 9457; a call that was decided is no error, however it ended
            raise RuntimeError("{title}: {detail}".format(**{"detail": "", **document}))
        return document

    def call(self, tool, arguments):
        """Makes one call and waits, for a person's yes too. Returns outcome, exit status and output."""
        step = self.ask("POST", "/calls", {"tool": tool, "input": arguments})["steps"][0]
        denial = step.get("denial", {})
        return {"outcome": step.get("outcome", "error"), "exit": step["exit"], "stdout": step["stdout"].get("text", ""),
                "stderr": step["stderr"].get("text", ""), "why": denial.get("reason") or step.get("error", ""),
                "comment": denial.get("comment", ""), "receipt": step.get("log_index"), "decision": step.get("decision_id")}


def tool_name(name):
    return name.replace("_", ".", 1)


if __name__ == "__main__":
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    places = [os.environ.get("XDG_RUNTIME_DIR", "/nowhere") + "/palyra/palyrad.sock", state + "/palyra/palyrad.sock"]  # of a user's own palyrad
    palyrad = Palyrad(os.environ.get("PALYRA_SOCKET") or next(filter(os.path.exists, places), "/run/palyra/palyrad.sock"))
    if len(sys.argv) < 3:
        print(*(t["name"] + ": " + t["description"] for t in palyrad.ask("GET", "/tools")["items"] if "server" not in t), sep="\n")
    else:
        print(json.dumps(palyrad.call(sys.argv[1], json.loads(sys.argv[2])), indent=2))
