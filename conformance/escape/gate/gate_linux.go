// Command gate makes an attempt of the attack battery in the cell of an MCP server behind palyrad's
// gateway: the attempt is a call of its one tool (escape/attack, serve). It starts a palyrad of the
// user's for it, adds the server, accepts the tool, calls it, prints what it said and ends palyrad.
//
//	gate --palyra bin/palyra --egress HOST:PORT… --state DIR --policy DIR --timeout 10s -- attack PROBE WORD…
//
// Its flags are those of palyra exec, as far as a server has them. The exit status is palyra
// call's, but 125 for a call whose server a tripwire ended.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"palyra/hub"
	"palyra/transport/client"
)

// list is a flag that may be given more than once.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

type gate struct {
	palyra, state, policy, timeout, workspace, socket string
	server                                            []string // flags of palyra mcp add
	argv                                              []string
}

func main() {
	g := new(gate)
	var egress, inspect, uses, env list
	flag.StringVar(&g.palyra, "palyra", "", "`FILE` under test")
	flag.StringVar(&g.state, "state", "", "state `DIR`")
	flag.StringVar(&g.policy, "policy", "", "policy `DIR`")
	flag.StringVar(&g.timeout, "timeout", "", "for the call")
	flag.StringVar(&g.workspace, "workspace", "", "`DIR[:ro]`")
	tier := flag.String("tier", "c", "c: a server has no other")
	flag.Var(&egress, "egress", "a host")
	flag.Var(&inspect, "inspect", "a rule about requests")
	flag.Var(&uses, "egress-secret", "a use of a secret")
	flag.Var(&env, "env", "a variable")
	flag.Parse()
	g.argv = flag.Args()
	for name, l := range map[string]list{"--egress": egress, "--inspect": inspect, "--egress-secret": uses, "--env": env} {
		for _, v := range l {
			g.server = append(g.server, name, v)
		}
	}
	status, err := 2, error(nil)
	if *tier != "c" || len(g.argv) < 2 {
		err = errors.New("usage: gate FLAGS -- ATTACK PROBE WORD…, at tier c")
	} else {
		status, err = g.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
	}
	os.Exit(status)
}

// run makes the attempt and returns the exit status.
func (g *gate) run() (status int, err error) {
	dir, err := os.MkdirTemp("", "gate-")
	if err != nil {
		return 2, err
	}
	defer os.RemoveAll(dir)
	end, err := g.daemon(dir)
	if err != nil {
		return 2, err
	}
	defer func() { err = errors.Join(err, end()) }()
	add := append([]string{"mcp", "add", "probe", "--timeout", g.timeout}, g.server...)
	if g.workspace != "" {
		add = append(add, "--workspace", "ws")
	}
	if _, _, err := g.ctl(append(add, "--", g.argv[0], "serve")...); err != nil {
		return 2, err
	}
	hands, err := client.New(client.Config{Socket: g.socket})
	if err != nil {
		return 2, err
	}
	defer hands.Close()
	ctx, who := context.Background(), hub.Caller{}
	defer hub.RemoveServer.Do(ctx, hands, who, "probe")
	server, err := hub.InspectServer.Do(ctx, hands, who, "probe")
	if err != nil {
		return 2, err
	}
	if _, err := hub.AcceptServer.Do(ctx, hands, who, hub.Acceptance{Name: "probe", AcceptanceBody: hub.AcceptanceBody{Digest: server.ListedDigest.String()}}); err != nil {
		return 2, err
	}
	in, err := json.Marshal(map[string]any{"server": "probe", "tool": "probe", "arguments": map[string]any{"words": g.argv[1:]}})
	if err != nil {
		return 2, err
	}
	out, errs, err := g.ctl("call", "mcp.call", string(in))
	var answer struct {
		Result struct {
			Content []struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"result"`
	}
	if json.Unmarshal([]byte(out), &answer) == nil {
		for _, c := range answer.Result.Content {
			fmt.Println(c.Text)
		}
	}
	// What it said before its end is known of a server that was ended, and why it was, too.
	if run := regexp.MustCompile(`run_[0-9a-f]+`).FindString(errs); run != "" && err != nil {
		said, more, _ := g.ctl("runs", "output", "--raw", run)
		fmt.Print(said, more)
	}
	fmt.Fprint(os.Stderr, errs)
	exit, failed := errors.AsType[*exec.ExitError](err)
	switch {
	case strings.Contains(errs, "the placeholder of "):
		return 125, nil
	case failed:
		return exit.ExitCode(), nil
	}
	return 0, err
}

// daemon starts a palyrad, and returns what ends it.
func (g *gate) daemon(dir string) (end func() error, err error) {
	g.socket = filepath.Join(dir, "p.sock")
	config := fmt.Sprintf("state.dir = %q\nlisten.socket = %q\nlisten.http = \"off\"\npolicy.dir = %q\n", g.state, g.socket, g.policy)
	if key := g.state + ".key"; exists(key) {
		config += fmt.Sprintf("vault.identity = %q\n", key)
	}
	if g.workspace != "" {
		ws, readOnly := strings.CutSuffix(g.workspace, ":ro")
		config += fmt.Sprintf("[workspaces.ws]\npath = %q\nread_only = %v\n", ws, readOnly)
	}
	// palyrad reads no program but those of the system and of folders that it's told.
	program, err := os.ReadFile(g.argv[0])
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(dir, "bin")
	if err := errors.Join(os.Mkdir(bin, 0o755), os.WriteFile(filepath.Join(bin, "attack"), program, 0o755)); err != nil {
		return nil, err
	}
	g.argv[0] = filepath.Join(bin, "attack")
	config += fmt.Sprintf("[workspaces.bin]\npath = %q\nread_only = true\n", bin)
	at := filepath.Join(dir, "palyrad.toml")
	if err := os.WriteFile(at, []byte(config), 0o600); err != nil {
		return nil, err
	}
	c := exec.Command(filepath.Join(filepath.Dir(g.palyra), "palyrad"), "--config", at)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return nil, err
	}
	text := new(strings.Builder)
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), `"status":"serving"`) {
			go func() {
				for lines.Scan() { // so that it can go on writing
				}
			}()
			return func() error { return errors.Join(c.Process.Signal(syscall.SIGTERM), c.Wait()) }, nil
		}
	}
	return nil, fmt.Errorf("palyrad doesn't serve: %w: %s", errors.Join(lines.Err(), c.Wait()), text)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ctl runs a command of palyra's.
func (g *gate) ctl(args ...string) (out, errs string, err error) {
	c := exec.Command(g.palyra, args...)
	c.Env = append(os.Environ(), "PALYRA_SOCKET="+g.socket)
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	if err = c.Run(); err != nil {
		err = fmt.Errorf("palyra %s: %w: %s", strings.Join(args[:2], " "), err, &e)
	}
	return o.String(), e.String(), err
}
