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

// TestKept: a placeholder in what a file of the workspace or of its layer says is named in receipt and
// journal, and neither ends the call nor revokes the secret: a clone whose URL has it goes on working.
// In a file's name it's a tripwire.
func TestKept(t *testing.T) {
	b, _ := private(t)
	if err := b.w.MakeRepository(); err != nil {
		t.Fatal(err)
	}
	payload := regexp.MustCompile(`"payload":"([A-Za-z0-9+/=]+)"`)
	acts := func() (n int) { // of the journal, whose entries are signed as base64
		filepath.WalkDir(filepath.Join(b.records(), "journal"), func(path string, d fs.DirEntry, err error) error {
			text, _ := os.ReadFile(path)
			for _, m := range payload.FindAllSubmatch(text, -1) {
				if entry, err := base64.StdEncoding.DecodeString(string(m[1])); err == nil && bytes.Contains(entry, []byte(`"act":"secret.kept"`)) {
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
	for _, staged := range []bool{false, true} {
		before := acts()
		r := run(staged, useNPM+" revoke", `
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
		if n := acts() - before; n != 1 {
			t.Errorf("staged %t: %d acts", staged, n)
		}
		// A file too large is told of, and those after it, and the small ones are read.
		r = run(staged, useNPM, `head -c 20000000 /dev/zero >larger; echo "$TOKEN" >>larger; echo "it=$TOKEN" >.env`)
		if r.status != 0 || !slices.Equal(r.egress.Kept, []evidence.Kept{{Name: "TOKEN", Path: ".env"}}) || r.egress.Unread != 1 {
			t.Errorf("staged %t: %s", staged, r)
		}
		before = acts()
		r = run(staged, useNPM, `printf %s "$TOKEN" | cut -c 1-20 >half; ln -s /nowhere link; mkfifo pipe; echo "$TOKEN" >/tmp/private`)
		if r.status != 0 || len(r.egress.Kept) != 0 || r.egress.Unread != 0 || acts() != before {
			t.Errorf("staged %t, nothing kept: %s", staged, r)
		}
		for _, script := range []string{`: >"a-$TOKEN"`, `mkdir -p "x/$TOKEN"`, `ln -s "/$TOKEN" x`} {
			r = run(staged, useNPM, script)
			if r.outcome != "failed" || r.reason != "placeholder_leaked" || !slices.Contains(r.egress.Leaks, evidence.Leak{Name: "TOKEN", Where: evidence.LeakPlanted}) {
				t.Errorf("staged %t, %s: %s", staged, script, r)
			}
		}
	}
}
