package script

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/internal/sample"
)

// TestKit has palyra setup make a palyrad for a project with a Go module that needs another one,
// and palyrad build and test it, offline: what setup declares is enough, the second build
// compiles nothing, and the project stays as it is.
func TestKit(t *testing.T) {
	home, err := os.MkdirTemp("/var/tmp", "palyra-kit-") // a cell has a /tmp of its own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+w", home).Run(); os.RemoveAll(home) })
	app := filepath.Join(home, "app")
	goBin, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=" + home, "XDG_STATE_HOME=" + home + "/s", "PATH=" + tools + ":" + filepath.Dir(goBin) + ":/usr/local/bin:/usr/bin:/bin"}
	run := func(more []string, name string, args ...string) string {
		t.Helper()
		path := name
		if p, err := exec.LookPath(filepath.Join(tools, name)); err == nil {
			path = p
		}
		c := exec.Command(path, args...)
		c.Dir, c.Env = app, append(env, more...)
		out, err := c.CombinedOutput()
		if err != nil {
			log, _ := os.ReadFile(home + "/s/palyra/palyrad.log")
			t.Fatalf("%s %q: %v\n%s\n%s", name, args, err, out, log)
		}
		return string(out)
	}
	for name, text := range map[string]string{
		"app/go.mod":  "module example.org/app\n\ngo 1.25\n\nrequire example.org/dep v1.0.0\n",
		"app/main.go": "package main\n\nimport \"example.org/dep\"\n\nfunc main() { println(dep.Word) }\n",
		"app/main_test.go": `package main

import (
	"io"
	"net"
	"testing"

	"example.org/dep"
)

func TestPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { c, _ := l.Accept(); io.WriteString(c, dep.Word); c.Close() }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != dep.Word {
		t.Fatal(string(b), err)
	}
}
`,
		"app/Makefile":                         "hello: hello.c\n\tcc -o /tmp/hello hello.c && /tmp/hello\n",
		"app/hello.c":                          "#include <stdio.h>\nint main(void) { puts(\"from C\"); return 0; }\n",
		"app/package.json":                     `{"name": "app", "version": "1.0.0", "scripts": {"test": "node -e 'require(\"net\").createServer(c => c.end(\"x\")).listen(0, \"127.0.0.1\", function () { require(\"net\").connect(this.address().port).resume().on(\"close\", () => { console.log(\"from node in \" + process.env.HOME); process.exit(0) }) })'"}}`,
		"proxy/example.org/dep/@v/list":        "v1.0.0\n",
		"proxy/example.org/dep/@v/v1.0.0.info": `{"Version":"v1.0.0","Time":"2026-01-01T00:00:00Z"}`,
		"proxy/example.org/dep/@v/v1.0.0.mod":  "module example.org/dep\n",
	} {
		at := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	zipped, err := os.Create(home + "/proxy/example.org/dep/@v/v1.0.0.zip")
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(zipped)
	for name, text := range map[string]string{"go.mod": "module example.org/dep\n", "dep.go": "package dep\n\nconst Word = \"from the module cache\"\n"} {
		w, err := z.Create("example.org/dep@v1.0.0/" + name)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	zipped.Close()
	run([]string{"GOPROXY=file://" + home + "/proxy", "GOSUMDB=off", "GOFLAGS=-mod=mod"}, goBin, "mod", "download", "all")
	before := tree(t, app)

	t.Cleanup(func() { // setup's palyrad
		b, _ := os.ReadFile(home + "/said")
		_, pid, _ := strings.Cut(string(b), "started palyrad (process ")
		if n, err := strconv.Atoi(pid[:max(0, strings.IndexByte(pid, ','))]); err == nil {
			syscall.Kill(n, syscall.SIGTERM)
		}
	})
	said := run(nil, "palyra", "setup", "palyrad")
	if err := os.WriteFile(home+"/said", []byte(said), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`caches = ["go", "npm", "home"]`, `mounts = ["` + home + `/go/pkg/mod"]`, "own_path = true", `network = "loopback"`} {
		if !strings.Contains(said, want) {
			t.Errorf("setup didn't say %s:\n%s", want, said)
		}
	}
	type result struct {
		Stdout, Stderr, Reason, Error string
		Took                          time.Duration
	}
	call := func(argv ...string) (r result) {
		t.Helper()
		in, err := json.Marshal(map[string]any{"argv": argv, "workspace": "app", "env": []string{"CGO_ENABLED=0"}, "timeout_ms": 240000, "cpu_ms": 240000})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		r.Stdout = run(nil, "palyra", "call", "process.run", string(in))
		r.Took = time.Since(start)
		return r
	}
	// Both compile much of Go's library, so compile it fast. A sample doesn't compile package testing.
	const fast = "-gcflags=all=-N -l -dwarf=false"
	cold := call("go", "build", fast, "-v", "-o", "/tmp/app", "./...")
	warm := call("go", "build", fast, "-v", "-o", "/tmp/app", "./...")
	if !strings.Contains(cold.Stdout, "example.org/dep") || strings.Contains(warm.Stdout, "example.org") {
		t.Errorf("compiled first\n%s\nthen\n%s", cold.Stdout, warm.Stdout)
	}
	t.Logf("go build: cold %v, warm %v", cold.Took, warm.Took)
	for range sample.Of(0, 1) {
		first, second := call("go", "test", fast, "-vet=off", "./..."), call("go", "test", fast, "-vet=off", "./...")
		if !strings.Contains(first.Stdout, "ok  \texample.org/app") || strings.Contains(first.Stdout, "(cached)") || !strings.Contains(second.Stdout, "(cached)") {
			t.Errorf("tested first\n%s\nthen\n%s", first.Stdout, second.Stdout)
		}
		t.Logf("go test: first %v, then %v", first.Took, second.Took)
	}
	if _, err := exec.LookPath("cc"); err == nil {
		if r := call("make"); !strings.Contains(r.Stdout, "from C") {
			t.Errorf("make said %s", r.Stdout)
		}
	}
	if _, err := exec.LookPath("npm"); err == nil {
		if r := call("npm", "test"); !strings.Contains(r.Stdout, "from node in /caches/home") {
			t.Errorf("npm said %s", r.Stdout)
		}
	}
	// The directory is at its own path, HOME is empty for each call without a session, and what
	// the call does without isn't there.
	if r := call("sh", "-c", "pwd; ls -A ~; touch ~/x; head -c 99 "+home+"/go/pkg/mod/example.org/dep@v1.0.0/dep.go"); !strings.HasPrefix(r.Stdout, app+"\npackage dep") {
		t.Errorf("sh said %s", r.Stdout)
	}
	in := fmt.Sprintf(`{"argv":["sh","-c","pwd; ls %s 2>&1; ls /caches 2>&1; true"],"workspace":"app","bare":true}`, home)
	if out := run(nil, "palyra", "call", "process.run", in); !strings.HasPrefix(out, "/workspace\nls: ") || strings.Contains(out, "\ngo\n") {
		t.Errorf("a bare call sees %s", out)
	}
	var list struct {
		Caches []struct {
			Name, Session string
			Bytes         int64
		}
	}
	if err := json.Unmarshal([]byte(run(nil, "palyra", "caches", "ls", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	names := map[string]int64{}
	for _, c := range list.Caches {
		names[c.Name] = c.Bytes
	}
	if names["go"] < 1<<20 || len(list.Caches) != 2 {
		t.Errorf("kept %+v", list.Caches) // no home: its session was the call's
	}
	if after := tree(t, app); after != before {
		t.Errorf("the project changed from\n%s\nto\n%s", before, after)
	}
	if out := run(nil, "palyra", "setup", "palyrad", "--undo"); !strings.Contains(out, "this folder is no workspace any more") {
		t.Errorf("undo said %s", out)
	}
	b, err := os.ReadFile(home + "/.config/palyra/palyrad.toml")
	if err != nil || strings.Contains(string(b), "[workspaces") {
		t.Errorf("%v, left\n%s", err, b)
	}
}

// tree lists a folder's files with their sizes and times.
func tree(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir, "-printf", "%p %s %T@ %m\n").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
