package egress

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"palyra/conformance/seek"
	"palyra/conformance/world"
	"palyra/internal/sample"
	"palyra/isolate/evidence"
)

// token is the value of the secret in these tests.
const token = "the-token-of-the-registry-9f31c7"

// registryUse has palyra put it into requests to the registry, where a program puts its placeholder.
// The programs of the tests keep it in files, which they compare.
const registryUse = "TOKEN=vault://global/token header:authorization packages.example keep"

// registered gives b a vault with the token, which what is private wants.
func (b *bench) registered() {
	b.t.Helper()
	for _, n := range []string{"git.example", "packages.example", "other.example"} {
		b.w.Set(n, world.Addrs(world.Web, world.Web6))
	}
	if err := b.w.MakeRepository(); err != nil {
		b.t.Fatal(err)
	}
	b.w.Want(token)
	file := b.write("../token.txt", token)
	defer os.Remove(file)
	for _, args := range [][]string{{"vault", "init"}, {"vault", "set", "--file", file, "vault://global/token"}} {
		if b.socket != "" && args[1] == "init" { // before it began
			continue
		}
		if out, err := b.outside(append([]string{palyra()}, args...)...); err != nil {
			b.t.Fatalf("palyra %q: %v\n%s", args, err, out)
		}
	}
}

// with runs a shell in a cell whose requests get the token, in a workspace of its own. More are
// further flags.
func (b *bench) with(more []string, script string) (r *call, workspace string) {
	b.t.Helper()
	workspace = filepath.Join(b.t.TempDir(), "src")
	if err := os.Mkdir(workspace, 0o777); err != nil {
		b.t.Fatal(err)
	}
	return b.exec(nil, append([]string{"--egress-secret", registryUse, "--workspace", workspace}, more...), "sh", "-c", script), workspace
}

// clients are programs that log in with the token in $TOKEN to what is private in the world, and what
// they print if they got in. $T is a folder for what they keep.
var clients = []struct{ name, program, script, want string }{
	{"curl", "curl", `curl -sS -H "Authorization: Bearer $TOKEN" https://packages.example/private/repo.git/HEAD`, "ref: refs/heads/main\n"},
	{"git", "git", `git -c credential.helper='!f() { echo username=x; echo "password=$TOKEN"; }; f' clone -q https://packages.example/private/repo.git clone && cat clone/hello.txt`, "from the world\n"},
	{"npm", "npm", `printf '//packages.example/private/npm/:_authToken=${TOKEN}\nregistry=https://packages.example/private/npm/\n' >.npmrc &&
		npm install --silent --no-audit --no-fund --cache=$T/npm fromworld && node -p 'require("fromworld")'`, "from the world\n"},
	{"pip", "/usr/bin/python3", `/usr/bin/python3 -m pip install -q --disable-pip-version-check --no-cache-dir --no-deps --target pip --index-url "https://x:$TOKEN@packages.example/private/simple" fromworld &&
		PYTHONPATH=pip /usr/bin/python3 -c 'import fromworld; print(fromworld.word)'`, "from the world\n"},
	{"go", "/usr/local/go/bin/go", `export HOME=$T GOPROXY=https://packages.example/private/mod GONOSUMDB='*' GOFLAGS="-mod=mod -modcacherw" GOTOOLCHAIN=local GOCACHE=$T/cache GOPATH=$T/go CGO_ENABLED=0
		printf 'machine packages.example login x password %s\n' "$TOKEN" >$T/.netrc &&
		printf 'module example.org/app\n' >go.mod && /usr/local/go/bin/go mod download -x example.org/dep@v1.0.0 2>/dev/null && cat $T/go/pkg/mod/example.org/dep@v1.0.0/dep.go`, "package dep\n\nconst Word = \"from the world\"\n"},
	{"node", "node", `node -e '
		fetch("https://packages.example/private/v1/chat/completions", {method: "POST", headers: {"authorization": "Bearer " + process.env.TOKEN, "content-type": "application/json"},
			body: JSON.stringify({model: "m", stream: true, messages: [{role: "user", content: "hello there"}]})})
		.then(async r => { let text = ""; for await (const b of r.body) text += Buffer.from(b); console.log(text.split("\n\n").filter(l => l.startsWith("data: {")).map(l => JSON.parse(l.slice(6)).choices[0].delta.content).join("")) })'`, "you said: hello there \n"},
	{"python", "/usr/bin/python3", `/usr/bin/python3 -c '
import json, os, urllib.request as u
q = u.Request("https://packages.example/private/v1/chat/completions", json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello there"}]}).encode(),
    {"Authorization": "Bearer " + os.environ["TOKEN"], "Content-Type": "application/json"})
print(json.load(u.urlopen(q))["choices"][0]["message"]["content"])'`, "you said: hello there\n"},
}

// TestClients: programs that log in work with a placeholder in place of the token. The token is on the
// wire to the registry, and in nothing that the program can read.
func TestClients(t *testing.T) {
	b := begun(t)
	b.registered()
	v := seek.For(token)
	for _, c := range clients[:sample.Of(2, len(clients))] {
		t.Run(c.name, func(t *testing.T) {
			if _, err := exec.LookPath(c.program); err != nil {
				t.Logf("not tried: %v", err)
				return
			}
			b := b.in(t)
			// The control: outside the program logs in with the token itself, and leaves it where it was.
			dir := t.TempDir()
			out, err := b.outside("env", "TOKEN="+token, "NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt", "T="+filepath.Join(dir, "t"), "sh", "-c", "cd "+dir+" && mkdir t && printenv TOKEN >token.txt && "+c.script)
			if err != nil || !strings.HasSuffix(out, c.want) { // pip warns root
				t.Fatalf("control: %v\n%s", err, out)
			}
			if found, _, err := v.Files(dir); len(found) == 0 || err != nil {
				t.Fatalf("control: the search finds %q, %v", found, err)
			}
			before := len(b.w.Requests())
			r, ws := b.with(nil, "T=/tmp; printenv TOKEN >token.txt && "+c.script)
			if r.status != 0 || r.stdout != c.want {
				t.Fatal(r)
			}
			if found, read, err := v.Files(ws); len(found) > 0 || read < 1 || err != nil {
				t.Errorf("in %d files of the workspace: %q, %v", read, found, err)
			}
			placeholder, err := os.ReadFile(filepath.Join(ws, "token.txt"))
			if p := strings.TrimSpace(string(placeholder)); err != nil || len(p) < 40 || strings.Contains(r.stdout+r.stderr, p) {
				t.Errorf("the placeholder is %q, %v", p, err)
			}
			arrived := b.w.Requests()[before:]
			if !slices.ContainsFunc(arrived, func(q world.Request) bool { return q.Status == 200 && has(q.Authorization, token) }) {
				t.Errorf("arrived %+v", arrived)
			}
			if i := slices.IndexFunc(arrived, func(q world.Request) bool { return has(q.Authorization, strings.TrimSpace(string(placeholder))) }); i >= 0 {
				t.Errorf("the placeholder arrived: %+v", arrived[i])
			}
			used := slices.ContainsFunc(r.egress.Requests, func(q evidence.Request) bool {
				return q.Host == "packages.example" && q.Status == 200 && slices.Equal(q.Uses, []string{"TOKEN"})
			})
			if !used || len(r.egress.Leaks) > 0 || len(r.egress.Requests) != len(arrived) {
				t.Errorf("%d requests arrived; %s", len(arrived), r)
			}
		})
	}
}

// has reports whether a header says a password or token.
func has(authorization, token string) bool {
	kind, value, _ := strings.Cut(authorization, " ")
	if kind == "Basic" {
		b, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return false
		}
		value = string(b)
	}
	return strings.Contains(value, token)
}

// cell returns the processes of the cells of a palyra's calls, or palyrad's, palyra-cell among them.
func (b *bench) cell(palyra int) (pids []int) {
	b.t.Helper()
	all, err := seek.Below(palyra)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, pid := range all {
		name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
		if err != nil || string(name) != "palyra-cell\n" {
			continue
		}
		below, err := seek.Below(pid)
		if err != nil {
			b.t.Fatal(err)
		}
		pids = append(append(pids, pid), below...)
	}
	if pids = slices.Compact(pids); len(pids) < 3 { // palyra-cell, the reaper, the program
		b.t.Errorf("the cell's processes are %d", pids)
	}
	return pids
}

// rememberEverything is a script that uses the token, keeps what it has of it in all the ways that it
// can, prints what came back, waits for the test and dumps core.
const rememberEverything = `git -c credential.helper='!f() { echo username=x; echo "password=$TOKEN"; }; f' clone -q https://packages.example/private/repo.git clone &&
	curl -sS -D headers.txt -o body.txt -H "Authorization: Bearer $TOKEN" https://packages.example/private/echo &&
	printenv >env.txt && cp env.txt headers.txt body.txt /tmp && cp env.txt headers.txt body.txt /dev/shm &&
	sed "s/$PUT_OUT/the placeholder/g" headers.txt body.txt env.txt && KEPT="$TOKEN$(cat headers.txt body.txt)" &&
	curl -sS https://packages.example/hold; sh -c 'ulimit -c unlimited; kill -ABRT $$' sh "$KEPT"; true`

// look runs that script, and says where it finds the token: in the memory of the cell's processes, in
// the files that they are shown, in its output, in the files that are left and in palyra's records.
func (b *bench) look(more []string, argv ...string) map[string][]string {
	b.t.Helper()
	ws := filepath.Join(b.t.TempDir(), "src")
	if err := os.Mkdir(ws, 0o777); err != nil {
		b.t.Fatal(err)
	}
	return b.lookAt(ws, func() running { return b.start(nil, append([]string{"--workspace", ws}, more...), argv...) })
}

// lookAt is look for a call that begin begins, in the workspace ws.
func (b *bench) lookAt(ws string, begin func() running) map[string][]string {
	b.t.Helper()
	found, v := make(map[string][]string), seek.For(token)
	files := func(place, dir string, least int) {
		f, read, err := v.Files(dir)
		if read < least || err != nil {
			b.t.Errorf("%s: %d files in %s, %v", place, read, dir, err)
		}
		found[place] = append(found[place], f...)
	}
	held, release := b.w.Hold()
	defer release()
	r := begin()
	over, waits := make(chan *call, 1), make(chan struct{})
	go func() { over <- r.wait() }()
	go func() { // until it waits, or the test is over
		b.w.Until(func() bool { return held() > 0 })
		close(waits)
	}()
	select {
	case c := <-over:
		b.t.Fatalf("it ended before it waited: %s", c)
	case <-waits:
		for _, pid := range b.cell(r.pid) {
			m, read, err := v.Memory(pid)
			if err != nil || read == 0 {
				b.t.Errorf("process %d: %d bytes, %v", pid, read, err)
			}
			found["memory"] = append(found["memory"], m...)
		}
		program := b.holding(r.pid)
		for _, dir := range []string{"/workspace", "/tmp", "/dev/shm", "/etc"} {
			files("shown", "/proc/"+strconv.Itoa(program)+"/root"+dir, 3)
		}
	}
	release()
	c := <-over
	if c.status != 0 || len(c.egress.Leaks) > 0 {
		b.t.Fatal(c)
	}
	found["output"] = v.In([]byte(c.stdout + c.stderr))
	files("left", ws, 10)
	files("records", b.records(), 5)
	return found
}

// holding is the process of a cell that asks for /hold. palyrad has cells of no call, too.
func (b *bench) holding(palyra int) int {
	b.t.Helper()
	for _, pid := range b.cell(palyra) {
		if name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); err == nil && string(name) == "curl\n" {
			return pid
		}
	}
	b.t.Fatal("no process of the cell waits")
	return 0
}

// TestNowhere: while a program uses the token, and when it's over, no process of its cell, no file
// that the cell shows or leaves, no output and nothing of palyra's records has it. The same search
// finds it in each of these where the program has the token itself.
func TestNowhere(t *testing.T) {
	b := begun(t)
	b.registered()
	inside := b.look([]string{"--egress-secret", registryUse}, "sh", "-c", "export PUT_OUT=$TOKEN; "+rememberEverything)
	for place, found := range inside {
		if len(found) > 0 {
			t.Errorf("%s: %q", place, found)
		}
	}
	control := b.look([]string{"--egress", "packages.example", "--env", "TOKEN=" + token}, "sh", "-c", "export PUT_OUT=none; "+rememberEverything, token)
	for place := range inside {
		if len(control[place]) == 0 {
			t.Errorf("the search doesn't find it in %s where it is", place)
		}
	}
}
