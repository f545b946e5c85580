package egress

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"palyra/isolate/evidence"
)

// TestKept: a placeholder in what a file of the workspace or of its layer says is a tripwire: receipt
// and journal have the file, and with revoke the secret's version expires. If the use lets files keep
// it, they are named in both, and the call is as it was: a clone whose URL has it goes on working. In a
// file's name it's a tripwire all the same.
func TestKept(t *testing.T) {
	b, _ := private(t)
	if err := b.w.MakeRepository(); err != nil {
		t.Fatal(err)
	}
	payload := regexp.MustCompile(`"payload":"([A-Za-z0-9+/=]+)"`)
	acts := func(of ...string) (n int) { // of the journal, whose entries are signed as base64
		filepath.WalkDir(filepath.Join(b.records(), "journal"), func(path string, d fs.DirEntry, err error) error {
			text, _ := os.ReadFile(path)
			for _, m := range payload.FindAllSubmatch(text, -1) {
				if entry, err := base64.StdEncoding.DecodeString(string(m[1])); err == nil && !slices.ContainsFunc(of, func(text string) bool { return !bytes.Contains(entry, []byte(text)) }) {
					n++
				}
			}
			return err
		})
		return n
	}
	run := func(staged bool, use, script string) *call {
		t.Helper()
		workspace := filepath.Join(t.TempDir(), "src")
		if err := os.Mkdir(workspace, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(workspace, "before"), []byte("nothing"), 0o666); err != nil {
			t.Fatal(err)
		}
		if staged {
			workspace += ":staged"
		}
		return b.exec(nil, []string{"--egress-secret", use, "--workspace", workspace}, "sh", "-c", script)
	}
	const told, keep = `"act":"secret.kept"`, useNPM + " keep"
	for _, staged := range []bool{false, true} {
		before := acts(told)
		r := run(staged, keep+" revoke", `
			git clone -q "https://x:$TOKEN@packages.example/private/repo.git" clone && cat clone/hello.txt
			mkdir sub && echo "$TOKEN" | base64 >sub/b64
			head -c 3000000 /dev/zero >large && echo "$TOKEN" >>large
			echo nothing >plain; echo more >>before`)
		want := []evidence.Kept{{Name: "TOKEN", Path: "clone/.git/config"}, {Name: "TOKEN", Path: "large"}, {Name: "TOKEN", Path: "sub/b64"}}
		if r.status != 0 || r.stdout != "from the world\n" || !slices.Equal(r.egress.Kept, want) || r.egress.MoreKept+r.egress.Unread != 0 || len(r.egress.Leaks) != 0 {
			t.Errorf("staged %t: %s", staged, r)
		}
		if !strings.Contains(r.stderr, "left the placeholder of TOKEN in clone/.git/config and 2 more") {
			t.Errorf("staged %t: %s", staged, r.stderr)
		}
		if n := acts(told) - before; n != 1 {
			t.Errorf("staged %t: %d acts", staged, n)
		}
		// A file too large is told of, and those after it, and the small ones are read.
		r = run(staged, keep, `head -c 20000000 /dev/zero >larger; echo "$TOKEN" >>larger; echo "it=$TOKEN" >.env`)
		if r.status != 0 || !slices.Equal(r.egress.Kept, []evidence.Kept{{Name: "TOKEN", Path: ".env"}}) || r.egress.Unread != 1 {
			t.Errorf("staged %t: %s", staged, r)
		}
		before = acts(told)
		r = run(staged, useNPM, `printf %s "$TOKEN" | cut -c 1-20 >half; ln -s /nowhere link; mkfifo pipe; echo "$TOKEN" >/tmp/private`)
		if r.status != 0 || len(r.egress.Kept)+len(r.egress.Leaks) != 0 || r.egress.Unread != 0 || acts(told) != before {
			t.Errorf("staged %t, nothing kept: %s", staged, r)
		}
		// Without the word the call's outcome is a leak's, though the program's exit was a success.
		before = acts(told)
		r = run(staged, useNPM, `git clone -q "https://x:$TOKEN@packages.example/private/repo.git" clone && cat clone/hello.txt; echo "$TOKEN" >zz`)
		leaks := []evidence.Leak{{Name: "TOKEN", Where: evidence.LeakFile, Path: "clone/.git/config"}, {Name: "TOKEN", Where: evidence.LeakFile, Path: "zz"}}
		if r.status != 125 || r.stdout != "from the world\n" || r.outcome != "failed" || r.reason != "placeholder_leaked" || !slices.Equal(r.egress.Leaks, leaks) || len(r.egress.Kept) != 0 {
			t.Errorf("staged %t, without keep: %s", staged, r)
		}
		if !strings.Contains(r.stderr, "the placeholder of TOKEN was seen in file clone/.git/config") || !strings.Contains(r.stderr, `the use ends in "keep"`) {
			t.Errorf("staged %t: %s", staged, r.stderr)
		}
		if n := acts(`"act":"secret.tripwire"`, `"path":"clone/.git/config"`, `"where":"file"`); n != 1 && !staged || n != 2 && staged || acts(told) != before {
			t.Errorf("staged %t: %d acts of it", staged, n)
		}
		for _, script := range []string{`: >"a-$TOKEN"`, `mkdir -p "x/$TOKEN"`, `ln -s "/$TOKEN" x`} {
			r = run(staged, useNPM, script)
			if r.outcome != "failed" || r.reason != "placeholder_leaked" || !slices.Contains(r.egress.Leaks, evidence.Leak{Name: "TOKEN", Where: evidence.LeakPlanted}) {
				t.Errorf("staged %t, %s: %s", staged, script, r)
			}
		}
	}
	// What a file has kept is known in every later call of whatever process.
	workspace := filepath.Join(t.TempDir(), "src")
	if err := os.Mkdir(workspace, 0o777); err != nil {
		t.Fatal(err)
	}
	r := b.exec(nil, []string{"--egress-secret", keep, "--workspace", workspace}, "sh", "-c", `echo "$TOKEN" >kept`)
	kept, err := os.ReadFile(filepath.Join(workspace, "kept"))
	if err != nil || r.status != 0 {
		t.Fatal(err, r)
	}
	for _, args := range [][]string{{"echo", "it is " + string(kept)}, {"sh", "-c", "TOKEN=" + strings.ToUpper(strings.TrimSpace(string(kept))) + " ./x"}} {
		if r := b.exec(nil, nil, args...); r.status != 125 || !strings.Contains(r.stderr, "the placeholder of TOKEN was seen in call") {
			t.Errorf("%.20q: %s", args, r)
		}
	}
	if n := acts(`"act":"secret.tripwire"`, `"where":"call"`, `"variable":"TOKEN"`); n != 2 {
		t.Errorf("%d acts of it", n)
	}
	r = run(true, useNPM+" revoke", `echo "$TOKEN" >kept`)
	if r.reason != "placeholder_leaked" || acts(`"act":"secret.tripwire"`, `"revoked":"true"`, `"path":"kept"`) != 1 {
		t.Error(r)
	}
	if r := run(true, useNPM, "true"); r.status != 125 || !strings.Contains(r.stderr, "has expired") {
		t.Errorf("the version of a placeholder that a file kept: %s", r)
	}
}
