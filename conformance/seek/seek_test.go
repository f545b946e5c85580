//go:build linux

package seek

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const value = "correct-horse/battery+staple"

func TestForms(t *testing.T) {
	v := For(value)
	back := []byte(value)
	slices.Reverse(back)
	for want, text := range map[string]string{
		"plain": "x" + value + "y", "hex": hex.EncodeToString([]byte("ab" + value)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(value + "z"))), "reversed": string(back),
	} {
		if got := v.In([]byte(text)); !slices.Equal(got, []string{want}) {
			t.Errorf("%q has it as %q, want %s", text, got, want)
		}
	}
	for i := range 8 {
		text := strings.Repeat("u", i) + ":" + value + strings.Repeat("\xff", i)
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding} {
			if got := v.In([]byte(enc.EncodeToString([]byte(text)))); len(got) == 0 {
				t.Errorf("it isn't found in the base64 of %q", text)
			}
		}
	}
	for _, text := range []string{"", value[1:], value[:len(value)-1], strings.ToUpper(value)} {
		if got := v.In([]byte(text)); len(got) > 0 {
			t.Errorf("%q has it as %q", text, got)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	v := For(value)
	write := func(name, text string) {
		t.Helper()
		p := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a/b/none", value[1:])
	if found, read, err := v.Files(dir); len(found) > 0 || read != 1 || err != nil {
		t.Fatalf("%q in %d, %v", found, read, err)
	}
	write("a/b/some", "x"+value)
	write("correct-horse", "")
	os.Symlink("/nowhere/"+hex.EncodeToString([]byte(value)), filepath.Join(dir, "link"))
	write("a/"+hex.EncodeToString([]byte(value)), "")
	if found, read, err := v.Files(dir); len(found) != 3 || read != 5 || err != nil {
		t.Errorf("%q in %d, %v", found, read, err)
	}
	if _, _, err := v.Files(filepath.Join(dir, "gone")); err != nil {
		t.Error(err)
	}
}

// TestMemory: a process that has the value in an argument, a variable or memory alone is found, and its
// neighbour isn't.
func TestMemory(t *testing.T) {
	v := For(value)
	look := func(env, script string, args ...string) []string {
		t.Helper()
		c := exec.Command("/bin/sh", append([]string{"-c", script + "\necho ready; read end", "sh"}, args...)...)
		c.Env = []string{"X=" + env, "PATH=/usr/bin:/bin"}
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
		defer in.Close()
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(line, err)
		}
		found, read, err := v.Memory(c.Process.Pid)
		if err != nil || read < 1<<16 {
			t.Fatalf("read %d bytes, %v", read, err)
		}
		all, err := Below(os.Getpid())
		if err != nil || !slices.Contains(all, c.Process.Pid) {
			t.Errorf("below this process: %d, %v", all, err)
		}
		return found
	}
	if found := look("", "true"); len(found) > 0 {
		t.Errorf("in a process without: %q", found)
	}
	half := fmt.Sprintf(`X=%s; Y=%s; Z=$X$Y`, value[:10], value[10:])
	for what, found := range map[string][]string{"cmdline": look("", "true", value), "environ": look(value, "true"), "memory": look("", half)} {
		if !slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, what) }) {
			t.Errorf("%s: found %q", what, found)
		}
	}
}
