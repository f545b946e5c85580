package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"palyra/hub"
	"palyra/transport/client"
)

// secret is the model's key, which palyra-egress puts in.
const secret = "sk-a-key-of-the-bench"

const config = `[state]
dir = %q

[listen]
socket = %q
http = "off"

[vault]
identity = %q

[models.scripted]
provider = "scripted"
script = %q
`

const declared = `
[models.%s]
provider = "openai_chat"
url = "https://%s:%d/v1"
network = "127.0.0.1:%[3]d"
model = "m"
key = "vault://global/key"
`

// daemon is a palyrad, with a palyra-egress as a service has it.
type daemon struct {
	w       *world
	log     *os.File
	egress  *exec.Cmd
	palyrad *exec.Cmd
	client  *client.Client
	session string
}

func startDaemon(ctx context.Context, bin, dir string, w *world) (_ *daemon, err error) {
	d := &daemon{w: w}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.stop())
		}
	}()
	if d.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	state, socket, identity, file := filepath.Join(dir, "state"), filepath.Join(dir, "s"), filepath.Join(dir, "vault.key"), filepath.Join(dir, "palyrad.toml")
	script := filepath.Join(dir, "script.json")
	text := fmt.Sprintf(config, state, socket, identity, script) + fmt.Sprintf(declared, "near", host, port(w.near))
	if w.far != nil {
		text += fmt.Sprintf(declared, "far", host, port(w.far))
	}
	if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.WriteFile(script, []byte(`{"turns":[{"text":"0"}]}`), 0o644)); err != nil {
		return nil, err
	}
	palyra := func(stdin string, args ...string) error {
		c := exec.CommandContext(ctx, filepath.Join(bin, "palyra"), args...)
		c.Env, c.Stdin = append(os.Environ(), "PALYRA_SOCKET="+socket), strings.NewReader(stdin)
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("palyra %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	if err := palyra("", "vault", "init", "--state", state, "--key", identity); err != nil {
		return nil, err
	}
	control := filepath.Join(dir, "egress")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: control, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	die := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.palyrad = exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" serve --config "$1"`, filepath.Join(bin, "palyrad"), file)
	d.palyrad.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "LISTEN_FDS=1", "LISTEN_FDNAMES=egress"}
	d.palyrad.ExtraFiles, d.palyrad.Stdout, d.palyrad.Stderr, d.palyrad.SysProcAttr = []*os.File{f}, d.log, d.log, die
	if err := d.palyrad.Start(); err != nil {
		return nil, err
	}
	d.egress = exec.Command(filepath.Join(bin, "palyra-egress"), "-connect", control, "-roots", w.rootsFile, "-nameserver", w.names.LocalAddr().String())
	d.egress.Stdout, d.egress.Stderr, d.egress.SysProcAttr = d.log, d.log, die
	if err := d.egress.Start(); err != nil {
		return nil, err
	}
	for tries := 0; ; tries++ {
		if _, err = os.Stat(socket); err == nil {
			break
		}
		if tries == 500 {
			return nil, errors.Join(err, d.said())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := palyra(secret, "vault", "set", "vault://global/key"); err != nil {
		return nil, errors.Join(err, d.said())
	}
	if d.client, err = client.New(client.Config{Socket: socket}); err != nil {
		return nil, err
	}
	s, err := hub.CreateSession.Do(ctx, d.client, hub.Caller{}, hub.NewSession{Title: "bench"})
	if err != nil {
		return nil, errors.Join(err, d.said())
	}
	d.session = s.ID
	return d, nil
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// said is the log as an error.
func (d *daemon) said() error {
	b, err := os.ReadFile(d.log.Name())
	return errors.Join(errors.New(string(b)), err)
}

func (d *daemon) stop() (err error) {
	for _, c := range []*exec.Cmd{d.palyrad, d.egress} {
		if c != nil && c.Process != nil {
			err = errors.Join(err, c.Process.Signal(syscall.SIGTERM))
			_ = c.Wait() // palyra-egress may be gone with palyrad
		}
	}
	if d.log != nil {
		d.log.Close()
	}
	return err
}

// tick is the unit of times in /proc/pid/stat.
const tick = 10 * time.Millisecond

// processor is what palyrad, palyra-egress, and all that these started and that is there or was
// reaped, took of a processor.
func (d *daemon) processor() (sum time.Duration) {
	ours := map[string]bool{strconv.Itoa(d.palyrad.Process.Pid): true, strconv.Itoa(d.egress.Process.Pid): true}
	all, _ := os.ReadDir("/proc")
	slices.SortFunc(all, func(a, b os.DirEntry) int {
		return cmp.Or(cmp.Compare(len(a.Name()), len(b.Name())), cmp.Compare(a.Name(), b.Name()))
	})
	for _, e := range all { // parents first, as long as numbers don't begin anew
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil || e.Name()[0] < '0' || e.Name()[0] > '9' {
			continue
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // from the third on, proc_pid_stat(5)
		if ours[e.Name()] = ours[e.Name()] || ours[f[1]]; !ours[e.Name()] {
			continue
		}
		for _, text := range f[11:15] {
			n, _ := strconv.Atoi(text)
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

func (d *daemon) paths() (out []path) {
	ask := func(name string) func(context.Context) (turn, error) {
		return func(ctx context.Context) (turn, error) { return d.turn(ctx, name) }
	}
	out = []path{
		{"a call, denied", d.call("process.run", `{"argv":["/bin/sh","-c","true"]}`, "denied")}, {"/bin/true in a cell", d.call("process.run", `{"argv":["/bin/true"]}`, "executed")},
		{"model.turn, scripted", ask("scripted")}, {"palyra agent run, scripted", d.agent}, {"model.turn, egress", ask("near")},
	}
	if d.w.far != nil {
		out = append(out, path{"model.turn, egress, far", ask("far")})
	}
	return out
}

// turn asks a model in a run of one step.
func (d *daemon) turn(ctx context.Context, name string) (t turn, err error) {
	start := time.Now()
	type object = map[string]any
	message := object{"role": "user", "parts": []object{{"text": d.w.question()}}}
	input, err := json.Marshal(object{"model": name, "request": object{"messages": []object{message}}})
	if err != nil {
		return t, err
	}
	tokens := d.w.tokens
	if name == "scripted" {
		tokens = 0
	}
	return d.follow(ctx, start, tokens, hub.NewRun{Session: d.session, Steps: []hub.Step{{Tool: "model.turn", Input: input}}})
}

// call makes another tool's call in a run of one step, which ends with an outcome.
func (d *daemon) call(tool, input, outcome string) func(context.Context) (turn, error) {
	return func(ctx context.Context) (t turn, err error) {
		start := time.Now()
		run, out, err := d.begin(ctx, hub.NewRun{Session: d.session, Steps: []hub.Step{{Tool: tool, Input: json.RawMessage(input)}}})
		if err != nil {
			return t, err
		}
		defer out.Close()
		for err == nil {
			_, err = out.Next(ctx)
		}
		if !errors.Is(err, io.EOF) {
			return t, err
		}
		t.whole = time.Since(start)
		t.first = t.whole
		if run, err = hub.GetRun.Do(ctx, d.client, hub.Caller{}, run.ID); err == nil && (len(run.Steps) != 1 || run.Steps[0].Outcome != outcome) {
			err = fmt.Errorf("the run %s, %+v; want %s", run.State, run.Steps, outcome)
		}
		return t, err
	}
}

// agent has an agent answer, in a session of its own: a later run of one is told of the earlier.
func (d *daemon) agent(ctx context.Context) (t turn, err error) {
	s, err := hub.CreateSession.Do(ctx, d.client, hub.Caller{}, hub.NewSession{})
	if err != nil {
		return t, err
	}
	return d.follow(ctx, time.Now(), 0, hub.NewRun{Session: s.ID, Agent: &hub.Agent{Prompt: d.w.question(), Model: "scripted"}})
}

// begin starts a run. Close its output.
func (d *daemon) begin(ctx context.Context, q hub.NewRun) (hub.Run, hub.Outputs, error) {
	run, err := hub.StartRun.Do(ctx, d.client, hub.Caller{}, q)
	if err != nil {
		return run, nil, err
	}
	out, err := hub.ReadOutput.Do(ctx, d.client, hub.Caller{}, hub.OutputQuery{Run: run.ID})
	return run, out, err
}

// follow starts a run and reads its output to its end. Without tokens the text says no times.
func (d *daemon) follow(ctx context.Context, start time.Time, tokens int, q hub.NewRun) (t turn, err error) {
	run, out, err := d.begin(ctx, q)
	if err != nil {
		return t, err
	}
	defer out.Close()
	var said bytes.Buffer
	answered := false
	for {
		p, err := out.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return t, err
		}
		if said.Write(p.Bytes()); p.Stream != "stdout" {
			return t, fmt.Errorf("it says %q", said.Bytes())
		}
		for {
			line, rest, ok := bytes.Cut(said.Bytes(), []byte("\n"))
			if !ok {
				break
			}
			var ev struct {
				Text, End string
				Error     json.RawMessage
			}
			if err := json.Unmarshal(line, &ev); err != nil {
				return t, err
			}
			if ev.Error != nil {
				return t, fmt.Errorf("the model refused: %s", ev.Error)
			}
			answered = answered || ev.End != ""
			if tokens > 0 {
				err = t.heard(start, ev.Text)
			} else if t.first == 0 {
				t.first = time.Since(start)
			}
			if err != nil {
				return t, err
			}
			said.Next(len(said.Bytes()) - len(rest))
		}
	}
	t.whole = time.Since(start)
	if answered {
		return t, t.check(tokens)
	}
	run, err = hub.GetRun.Do(ctx, d.client, hub.Caller{}, run.ID)
	for _, s := range run.Steps {
		if s.Reason == "cell_died" {
			return t, errAgain
		}
		err = errors.Join(err, fmt.Errorf("no answer: %s: %s: %s", s.Reason, s.Error, s.Stderr.Text))
	}
	return t, errors.Join(err, d.said())
}

// errAgain says that the host's mounts have changed, which palyra-cell saw before it began.
var errAgain = errors.New("the host's mounts have changed")
